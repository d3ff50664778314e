"""Grammar: the names of all commands, and how each of the server is called. Data for help, hints and completion.

The server decides. Capital words are options or sub-commands; `[...]` may be left out, `|` is a choice, `…` repeats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

USAGES: Mapping[str, Mapping[str, str]] = {
    "Jobs": {
        "ADDJOB": "queue body ms-timeout [REPLICATE n] [DELAY s] [RETRY s] [TTL s] [MAXLEN n] [ASYNC] "
        "[PRIORITY 0-9] [MAXDELIVERIES n] [DEADLETTER queue] [HEADER name value]…",
        "GETJOB": "[NOHANG] [TIMEOUT ms] [COUNT n] [WITHCOUNTERS] FROM queue…",
        "ACKJOB": "id…",
        "FASTACK": "id…",
        "NACK": "id… [DELAY s]",
        "WORKING": "id",
        "ENQUEUE": "id…",
        "DEQUEUE": "id…",
        "REVIVE": "id…",
        "CANCELJOB": "id… [TIMEOUT ms]",
        "WAITJOB": "id… [TIMEOUT ms]",
        "DELJOB": "id…",
        "SHOW": "id",
        "JSCAN": "[cursor] [COUNT n] [BUSYLOOP] [QUEUE queue] "
        "[STATE wait-repl|active|queued|acked|delivered|delayed]… [REPLY all|id]",
        "LOADJOB": "blob",
    },
    "Queues": {
        "QLEN": "queue",
        "GLOBALQLEN": "queue [TIMEOUT ms] [WITHNODES]",
        "QSTAT": "queue [GLOBAL] [TIMEOUT ms]",
        "QPEEK": "queue count",
        "QSCAN": "[cursor] [COUNT n] [BUSYLOOP] [MINLEN n] [MAXLEN n] [IMPORTRATE n] [REPLY all|id]",
        "QPURGE": "queue [TIMEOUT ms]",
        "PAUSE": "queue in|out|all|none|state… [BCAST]",
    },
    "Topics": {
        "PUBLISH": "channel body",
        "SUBSCRIBE": "channel…",
        "PSUBSCRIBE": "prefix*…",
        "UNSUBSCRIBE": "[channel…]",
        "PUNSUBSCRIBE": "[prefix*…]",
        "PUBSUB": "NUMSUB [channel…]",
    },
    "Cluster": {
        "HELLO": "[2|3 [AUTH user password] [SETNAME name]]",
        "CLUSTER": "INFO | NODES | MYID | MEET host port [bus-port] | FORGET id [ALL] | LEAVING [yes|no] | "
        "RESET [SOFT|HARD] | SAVECONFIG",
    },
    "Server": {
        "PING": "[text]",
        "INFO": "[section|all]",
        "AUTH": "[user] password",
        "CONFIG": "GET pattern | SET name value | RESETSTAT | REWRITE",
        "CLIENT": "LIST | KILL … | GETNAME | SETNAME name | PAUSE ms | REPLY ON|OFF|SKIP",
        "MONITOR": "",
        "SLOWLOG": "GET [n] | LEN | RESET",
        "LATENCY": "LATEST | HISTORY event | GRAPH event | DOCTOR | RESET [event…]",
        "TIME": "",
        "COMMAND": "[COUNT | INFO name…]",
        "BGREWRITEAOF": "",
        "SHUTDOWN": "[REWRITE-AOF]",
        "DEBUG": "FLUSHALL | SLEEP s | RESTART | LOADAOF | ERROR text",
        "QUIT": "",
    },
}

USAGE: Mapping[str, str] = {name: text for group in USAGES.values() for name, text in group.items()}

# Name -> the module of disque.cli that has it, as an attribute of the same name with `_command` behind.
SUBCOMMANDS: Mapping[str, str] = {
    "top": "top",
    "nodes": "nodes",
    "queues": "queues",
    "jobs": "jobs",
    "drain": "queues",
    "export": "exporting",
    "import": "importing",
    "forget": "nodes",
    "leave": "nodes",
    "bench": "bench",
    "worker": "running",
    "local": "running",
    "completion": "running",
    "help": "helping",
}


def option_words(name: str) -> list[str]:
    """The capital words that may follow a command, in the order of its usage."""
    return list(dict.fromkeys(re.findall(r"[A-Z][A-Z-]+", USAGE.get(name.upper(), ""))))


def names() -> str:
    """All commands by group, for the prompt."""
    groups = [f"{group + ':':9}{' '.join(words)}" for group, words in USAGES.items()]
    ours = f"{'Ours:':9}{' '.join(SUBCOMMANDS)}"
    return "\n".join([*groups, ours, "help COMMAND shows how it is called"])
