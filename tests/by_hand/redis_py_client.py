"""PyPI `redis` in three generations (4, 5-7, newest), with and without hiredis: a session with default settings.

Its `monitor()` wants a database number, which Disque's lines don't have: left out.
`python -m tests.by_hand.redis_py_client` needs ports 7711-7713 free; prints the counts of each generation.
"""

from __future__ import annotations

import shutil
import sys

from tests.by_hand.foreign import cluster, make_venv, run

GENERATIONS = (("redis<5",), ("redis<6",), ("redis<8", "hiredis"), ("redis",), ("redis", "hiredis"))
SESSION = r"""
import sys, threading, redis

passed = failed = 0

def check(act):
    global passed, failed
    try:
        act()
        passed += 1
    except Exception as error:
        failed += 1
        print("FAILED", act.__name__, repr(error))

major = int(redis.__version__.split(".")[0])
one = redis.Redis(port=7711)
two = redis.Redis(port=7712, decode_responses=True)
variants = [one] + ([redis.Redis(port=7711, protocol=3)] if major >= 5 else [])

def text(reply):
    return reply.decode() if isinstance(reply, bytes) else reply

def connects():
    for each in variants:
        assert each.ping() is True

def a_job_goes_from_node_to_node():
    for each in variants:
        job = text(each.execute_command("ADDJOB", "q", "body", 5000))
        assert two.execute_command("GETJOB", "TIMEOUT", 10000, "FROM", "q") == [["q", job, "body"]]
        assert two.execute_command("ACKJOB", job) == 1

def blocked():
    found = []
    waiting = threading.Thread(target=lambda: found.append(two.execute_command("GETJOB", "FROM", "late")))
    waiting.start()
    job = text(one.execute_command("ADDJOB", "late", "x", 5000))
    waiting.join(10)
    assert found == [[["late", job, "x"]]], found

def pipeline_is_answered_in_order():
    pipe = one.pipeline(transaction=False)
    for number in range(100):
        pipe.execute_command("ADDJOB", "p", number, 5000)
    pipe.execute_command("QLEN", "p")
    replies = pipe.execute()
    assert replies[-1] == 100 and len(set(replies)) == 101
    bodies = [job[2] for job in one.execute_command("GETJOB", "COUNT", 100, "FROM", "p")]
    assert sorted(bodies) == sorted(b"%d" % n for n in range(100))

def config_and_info():
    for each in variants:
        shown = each.config_get("port")
        assert {text(k): text(v) for k, v in shown.items()} == {"port": "7711"}, shown
        assert each.config_set("hz", 10)
        assert each.info("server")["disque_version"] == "1.0-rc1"
        assert "registered_jobs" in each.info()
        assert each.config_resetstat()

def clients():
    assert any(line["cmd"].startswith("client") for line in one.client_list())
    assert one.client_setname("me") and text(one.client_getname()) in ("me", None)
    assert one.client_pause(1)
    assert isinstance(one.client_id(), int)

def slowlog_and_latency():
    one.config_set("slowlog-log-slower-than", 0)
    one.ping()
    if major != 4:  # it wants six fields, Disque has four
        assert "duration" in one.slowlog_get(5)[0]
    assert one.slowlog_len() > 0 and one.slowlog_reset()
    one.config_set("slowlog-log-slower-than", 10000)
    assert one.execute_command("LATENCY", "LATEST") == []

def errors():
    wrong = ((("WORKING", "x"), "BADID"), (("ADDJOB", "q"), "wrong number"), (("NOSUCH",), "unknown command"))
    for words, kind in wrong:
        try:
            one.execute_command(*words)
        except redis.ResponseError as error:
            assert kind in str(error), error
        else:
            raise AssertionError(words)

def time_and_command():
    assert len(one.time()) == 2
    assert int(one.execute_command("COMMAND COUNT")) >= 37

def killed_connection_is_made_anew():
    one.ping()
    redis.Redis(port=7711).client_kill_filter(_type="normal")
    assert redis.Redis(port=7711).ping()

for act in (connects, a_job_goes_from_node_to_node, blocked, pipeline_is_answered_in_order, config_and_info,
            clients, slowlog_and_latency, errors, time_and_command, killed_connection_is_made_anew):
    check(act)
print(f"redis-py {redis.__version__}: {passed} passed, {failed} failed")
sys.exit(failed > 0)
"""


def main() -> int:
    """Run the session with each generation."""
    worst = 0
    with cluster(3) as (folder, _):
        (folder / "session.py").write_text(SESSION)
        for packages in GENERATIONS:
            python = make_venv(folder, *packages)
            worst = max(worst, run(str(python), "session.py", folder=folder))
            shutil.rmtree(folder / "venv")
    return worst


if __name__ == "__main__":
    sys.exit(main())
