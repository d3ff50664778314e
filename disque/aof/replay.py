"""The log as it is read at a start: records in order, what is damaged and what that means. Pure, over a Disk.

Damage is one of three. A *torn tail*: nothing valid follows, or no sync had covered it under `appendfsync always`
(marks in the log tell), so nobody was answered for it: the log ends there, with the last whole turn. *Written again*: a
later segment says that the damaged bytes never counted, or stand there once more. Anything else is *lost*: the bytes
are kept aside in a file and cut out, the rest of the log is used.

`is_intact` decides what this node may believe of itself (boots and since in the merge rules; B1.9, B6.7): it must be
false whenever a record that counted may be missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs

from disque.aof import format as fmt
from disque.aof.disk import Disk, LogError
from disque.aof.store import Unsynced
from disque.aof.survey import EVERYTHING, READ_BYTES, Surveyor, half_turn, is_beginning, is_kind
from disque.core.ready import BASE_KINDS, Record

# Records given at a time, so that the reader can do other work in between.
BATCH = 500
LOST_IDS_MAX = 10_000

Placed: TypeAlias = "tuple[Record, int, int, int]"  # record, segment, offset, bytes


@attrs.define(eq=False)
class Lost:
    """Bytes of a segment that are lost, and where they are kept ("" if nowhere)."""

    segment: int
    offset: int
    size: int
    file: str = ""


@attrs.define(eq=False)
class Findings:
    """What a replay has found. Bytes unless said otherwise; complete only after the last record."""

    node_id: str = ""
    boot: int = 0  # of the last life, 0: there was none
    since: int = 0
    records: int = 0  # the engine's
    read_bytes: int = 0
    total_bytes: int = 0
    torn_bytes: int = 0
    torn_at: tuple[int, int] | None = None  # segment, offset
    lost: list[Lost] = attrs.Factory(list)
    lost_records: int = 0  # at least
    # Ids that seem to lie in lost or torn bytes, at most LOST_IDS_MAX: a guess, for reports and for asking peers.
    lost_ids: dict[bytes, None] = attrs.Factory(dict)
    missing: list[int] = attrs.Factory(list)  # segments
    lost_before: int = 0  # cut out by disque-check-aof since the last start
    unsynced: Unsynced | None = None  # for the next life's Store
    queued: list[bytes] | None = None  # what lay in the queues at a clean stop, if it was written
    is_complete: bool = False
    is_ended: bool = False
    is_off: bool = False
    why_not_intact: str = ""
    notes: list[str] = attrs.Factory(list)

    @property
    def is_intact(self) -> bool:
        """True if no record that counted can be missing."""
        return not self.why_not_intact

    @property
    def lost_bytes(self) -> int:
        """Of damage in this replay that wasn't harmless."""
        return sum([each.size for each in self.lost])


class Replay:
    """Reads a log once; `run` it to its end, then `findings` is whole."""

    def __init__(
        self,
        disk: Disk,
        *,
        kernel_boot_id: str = "",
        stored_boot: int = 0,
        may_cut: bool = True,
        is_dry: bool = False,
    ) -> None:
        """`kernel_boot_id` of the kernel that runs now; `stored_boot`: the last boot in nodes.conf.

        A start writes its boot into the log first, synced, and into nodes.conf after that: so a boot that only
        nodes.conf knows was a life without the log, and a crash between the two is none.

        `may_cut` False: a torn tail is a LogError (aof-load-truncated no). `is_dry`: the disk isn't changed.
        """
        self._disk = disk
        self._kernel_boot_id = kernel_boot_id
        self._stored_boot = stored_boot
        self._may_cut = may_cut
        self._is_dry = is_dry
        self._segments = disk.segments()
        self.findings = Findings()
        self._surveyor = Surveyor(disk, self._segments, self.findings.notes)
        self.findings.total_bytes = sum([disk.size(segment) for segment in self._segments])
        self._kernel = ""
        self._is_always = False
        self._is_tail_odd = False  # torn, but no plain beginning of a record
        self._is_loss_real = False
        self._is_missing = False  # a segment that counted
        self._is_torn = False
        self._needed = 0  # the oldest segment that must be there
        self._life_began = 0  # in this segment
        self._mark = (0, 0)  # everything before this place was synced
        self._behind_mark: deque[tuple[int, int]] = deque()  # places of records, in order
        self._claims: dict[int, int] = {}
        self._said_lengths: dict[int, int] = {}  # by the head of this segment
        self._lengths: dict[int, int] = {}
        self._mended: dict[int, None] = {}

    def run(self) -> Iterator[list[Placed]]:
        """The engine's records in order, some at a time; OSError, LogError.

        A segment of another format's version is a LogError.
        """
        for segment in self._segments:
            data = self._surveyor.load(segment)
            found = fmt.scan(data, self._seed(segment))
            if found.damages:
                data, found = self._mend(segment, data, found)
            if not self._is_torn and found.offsets and self._is_end(segment, data, found):
                data, found = self._tear(segment, half_turn(data, found, len(data)), data, found)
            self._lengths[segment] = len(data)
            yield from self._records(segment, data, found)
            if self._is_torn:
                break
        self._finish()

    def _seed(self, segment: int) -> int:
        return fmt.seed_of(segment, self._disk.salt(segment))

    def _records(self, segment: int, data: bytes, found: fmt.Scan) -> Iterator[list[Placed]]:
        findings, batch, view = self.findings, list[Placed](), memoryview(data)
        done = findings.read_bytes
        for offset in found.offsets:
            size = fmt.size_at(data, offset)
            try:
                record = fmt.decode(view[offset + fmt.HEAD_BYTES : offset + size])
                records = fmt.members(record)
                if records[0].kind in fmt.META:
                    self._meta(segment, record)
                    continue
            except (ValueError, TypeError, IndexError) as error:
                self._lose(segment, offset, b"", f"a record that this version can't read: {error}")
                self._is_loss_real = True
                continue
            batch += [(each, segment, offset, size) for each in records]
            self._behind_mark.append((segment, offset))
            if len(batch) >= BATCH:
                findings.records += len(batch)
                findings.read_bytes = done + offset + size
                yield batch
                batch = []
        findings.records += len(batch)
        findings.read_bytes = done + len(data)
        if batch:
            yield batch

    # What the log says of itself

    def _meta(self, segment: int, record: Record) -> None:
        findings = self.findings
        fields: Any = record.fields
        match record.kind:
            case "segment":
                self._segment_head(*fields)
            case "start":
                self._start(segment, *fields)
            case "policy":
                self._is_always = self._is_always and fields[0] == "always"
            case "complete":
                findings.is_complete, findings.is_off = True, False
            case "off":
                findings.is_complete, findings.is_off = False, True
            case "end":
                findings.is_ended = True
            case "queued":
                findings.queued = list(fields[0])
            case "first":
                self._needed = max(self._needed, fields[0])
            case "synced":
                self._mark = max(self._mark, (fields[0], fields[1]))
                while self._behind_mark and self._behind_mark[0] < self._mark:
                    self._behind_mark.popleft()
            case "prior":
                self._claims[fields[0]] = fields[1]
            case "lost":
                findings.lost_before += fields[0]
                self._mended[segment] = None

    def _segment_head(
        self,
        number: int,
        node_id: str,
        version: int,
        first: int,
        is_complete: bool,
        lengths: tuple[tuple[int, int], ...],
    ) -> None:
        if version > fmt.VERSION:
            raise LogError(
                f"segment {number} has format version {version}, this server reads up to {fmt.VERSION}"
            )
        self.findings.node_id = node_id
        self.findings.is_complete = is_complete
        self.findings.is_off = self.findings.is_off and not is_complete
        self._needed = max(self._needed, first)
        self._said_lengths = dict(lengths)
        self._claims.update(lengths)

    def _start(self, segment: int, boot: int, since: int, kernel: str, policy: str) -> None:
        """A life begins, or a new segment of it says so again."""
        findings = self.findings
        if boot == findings.boot:
            self._is_always = self._is_always and policy == "always"
            return
        findings.boot, findings.since, self._kernel = boot, since, kernel
        self._life_began = segment
        self._is_always = policy == "always"
        findings.is_ended, findings.queued = False, None
        # That start has judged what was cut out and what was missing before it, and says itself what there was.
        findings.lost_before = 0
        self._claims = self._said_lengths

    # Damage

    def _mend(self, segment: int, data: bytes, found: fmt.Scan) -> tuple[bytes, fmt.Scan]:
        """Judge each damage, keep aside what is lost, cut; returns what is left of the segment."""
        last_start, later = self._surveyor.survey_behind(segment)
        starts: list[tuple[int, Any]] = [
            (at, fmt.record_at(data, at).fields)
            for at in found.offsets
            if is_kind(data, at, "start")
        ]
        if not last_start and starts:
            last_start = starts[-1][1]
        tear_at = len(data)
        surveys = self._surveyor.survey_each(segment, data, found, later)
        for damage, survey in zip(found.damages, surveys, strict=True):
            if not survey.is_followed:
                self._is_tail_odd = self._is_tail_odd or not is_beginning(data, damage)
                tear_at = damage.start
            elif survey.good is None or damage.start < survey.good:
                boots = [fields[0] for at, fields in starts if at < damage.start]
                boot = boots[-1] if boots else self.findings.boot
                if damage.start >= survey.synced and self._never_counted(boot, last_start):
                    tear_at = damage.start
                    break
                self._is_loss_real = True
                self._lose(segment, damage.start, data[damage.start : damage.end])
        if tear_at < len(data):
            data, found = self._tear(segment, half_turn(data, found, tear_at), data, found)
        return self._cut_out(segment, data)

    def _never_counted(self, boot: int, last_start: tuple[Any, ...]) -> bool:
        """True if what a life left unsynced was never answered for: `always`, and then the machine went down."""
        if not last_start:
            return self._is_always and self._is_new_kernel
        last_boot, _, kernel, policy = last_start
        is_always = self._is_always if boot == self.findings.boot else policy == "always"
        return last_boot == boot and kernel != self._kernel_boot_id and is_always

    def _is_end(self, segment: int, data: bytes, found: fmt.Scan) -> bool:
        """True if nothing valid follows, or what follows lacks bytes before it that no sync had covered."""
        later = [each for each in self._segments if each > segment and self._disk.size(each)]
        if not later:
            return True
        try:
            beginning = self._disk.read(later[0], 0, READ_BYTES)
        except OSError:
            return False
        if not fmt.is_record_at(beginning, len(fmt.MAGIC), self._seed(later[0])):
            return False
        if not is_kind(beginning, len(fmt.MAGIC), "segment"):
            return False
        fields: Any = fmt.record_at(beginning, len(fmt.MAGIC)).fields
        place = (segment, len(data))
        if segment + 1 < later[0] and segment + 1 not in self._segments:
            place = (segment + 1, 0)
        elif segment in self._mended or dict(fields[5]).get(segment, 0) <= len(data):
            return False
        starts = [at for at in found.offsets if is_kind(data, at, "start")]
        last_start, survey = self._surveyor.survey_behind(place[0])
        own: Any = fmt.record_at(data, starts[-1]).fields if starts else ()
        boot = own[0] if own else self.findings.boot
        last_start = last_start or own
        is_said_again = survey.good is not None and place[1] >= survey.good
        is_synced = place < max(self._mark, survey.synced_to)
        return not (is_said_again or is_synced) and self._never_counted(boot, last_start)

    def _lose(self, segment: int, offset: int, data: bytes, why: str = "damaged bytes") -> None:
        lost = Lost(segment, offset, len(data))
        self._note_ids(data)
        if data and not self._is_dry:
            try:
                lost.file = self._disk.set_aside(segment, offset, data)
            except OSError as error:
                self.findings.notes.append(f"damaged bytes can't be kept aside: {error}")
        self.findings.lost.append(lost)
        self.findings.lost_records += 1
        self.findings.notes.append(f"segment {segment} at {offset}: {why}")

    def _note_ids(self, data: bytes) -> None:
        ids = self.findings.lost_ids
        for id_ in fmt.job_ids(data):
            if len(ids) < LOST_IDS_MAX:
                ids[id_] = None

    def _tear(
        self, segment: int, start: int, data: bytes, found: fmt.Scan
    ) -> tuple[bytes, fmt.Scan]:
        """Here the log ends: this segment is cut, later ones are emptied; returns what is left of it."""
        findings = self.findings
        self._is_torn = True
        later = [each for each in self._segments if each > segment]
        size = len(data) - start + sum([self._disk.size(each) for each in later])
        if not size:
            return data, found
        if not self._may_cut:
            raise LogError(
                f"the log ends in the middle of a record: segment {segment} at {start}, {size} bytes. "
                "disque-check-aof --fix cuts it, aof-load-truncated yes lets the server do so"
            )
        self._note_ids(data[start:])
        findings.torn_bytes, findings.torn_at = size, (segment, start)
        if not self._is_dry:
            # The last first: a crash in between must not leave a hole.
            for each in reversed(later):
                self._disk.truncate(each, 0)
                self._disk.sync(each)
            self._disk.truncate(segment, start)
            self._disk.sync(segment)
        return data[:start], fmt.scan(data[:start], self._seed(segment))

    def _cut_out(self, segment: int, data: bytes) -> tuple[bytes, fmt.Scan]:
        """The segment without its damage, and with a record that says how much of that was lost."""
        seed = self._seed(segment)
        found = fmt.scan(data, seed)
        lost = [each for each in self.findings.lost if each.segment == segment]
        if not found.damages or self._is_dry or not all([each.file for each in lost]):
            return data, found
        parts = [data[at : at + fmt.size_at(data, at)] for at in found.offsets]
        left = fmt.MAGIC + b"".join(parts)
        note = fmt.encode(Record("lost", (sum([each.size for each in lost]),)))
        try:
            self._disk.replace(segment, left + fmt.head(note, seed) + note)
        except OSError as error:
            self.findings.notes.append(f"segment {segment} can't be mended: {error}")
            return data, found
        self._mended[segment] = None
        # What was lost is judged now: the record of it is for whoever comes next.
        return left, fmt.scan(left, seed)

    # The end

    @property
    def _is_new_kernel(self) -> bool:
        """True if the machine was down since the last life: what no sync covered may be lost."""
        return self._kernel != self._kernel_boot_id

    def _finish(self) -> None:
        findings = self.findings
        for segment, good in self._claims.items():
            length = self._lengths.get(segment, good)
            if length < good and segment not in self._mended:
                self._lose(segment, length, b"", f"its last {good - length} bytes are missing")
                self._is_loss_real = self._is_loss_real or self._counted(segment, length)
        if self._segments:
            there = dict.fromkeys(self._segments)
            oldest = self._needed or self._segments[0]
            findings.missing = [
                n
                for n in range(oldest, self._segments[-1])
                if n not in there and (n >= self._life_began or self._claims.get(n))
            ]
        if not self._is_dry:
            self._cut_said_again()
        self._is_missing = any([self._counted(segment, 0) for segment in findings.missing])
        findings.why_not_intact = self._why_not_intact()
        if self._segments and not self._is_new_kernel and not findings.is_ended:
            findings.unsynced = self._read_unsynced()

    def _cut_said_again(self) -> None:
        """What a later segment says again may never have reached the disk: it goes before a new life vouches for it."""
        for segment, good in self._claims.items():
            if self._lengths.get(segment, 0) > good and segment not in self._mended:
                try:
                    self._disk.truncate(segment, good)
                    self._disk.sync(segment)
                except OSError as error:
                    self.findings.notes.append(f"segment {segment} can't be cut to {good}: {error}")

    def _read_unsynced(self) -> Unsynced:
        """Records behind the last mark; not those of mended segments, which were synced, nor those said again."""
        behind, offset = self._mark
        lengths = {n: offset if n == behind else 0 for n in self._segments if n >= behind}
        for segment in self._mended:
            lengths.pop(segment, None)
        entries: list[tuple[bytes, bytes | None]] = []
        for segment, offset in self._behind_mark:
            if segment in self._mended or offset >= self._claims.get(segment, EVERYTHING):
                continue
            size = fmt.size_at(self._disk.read(segment, offset, fmt.HEAD_BYTES), 0)
            payload = self._disk.read(segment, offset + fmt.HEAD_BYTES, size - fmt.HEAD_BYTES)
            record = fmt.members(fmt.decode(payload))[0]
            entries.append((payload, record.id if record.kind in BASE_KINDS else None))
        return Unsynced(lengths, entries)

    def _counted(self, segment: int, offset: int) -> bool:
        """True unless what lay behind this place of the last life may be what no sync had covered."""
        is_synced = segment < self._life_began or (segment, offset) < self._mark
        return is_synced or not self._is_new_kernel

    def _why_not_intact(self) -> str:
        findings = self.findings
        is_same_kernel = not self._is_new_kernel
        reasons = (
            (not findings.boot, "there was no log"),
            (findings.is_off, "the log was switched off"),
            (not findings.is_complete, "the log never became complete"),
            (
                findings.boot < self._stored_boot,
                f"boot {self._stored_boot} isn't in the log, which ends with boot {findings.boot}",
            ),
            (self._is_missing, f"segments are missing: {findings.missing[:5]}"),
            (self._is_loss_real, "the log was damaged"),
            (bool(findings.lost_before), "damage was cut out of the log"),
            (
                not (is_same_kernel or findings.is_ended or self._is_always),
                "the machine went down with appendfsync other than always",
            ),
            (
                self._is_tail_odd and (is_same_kernel or findings.is_ended),
                "the last record is damaged",
            ),
        )
        return next((why for holds, why in reasons if holds), "")
