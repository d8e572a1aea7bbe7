"""What rounds leave for later in a fleet that is too large for each of them, and what they do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.support import START_S, aggregator, gpus, place, source, step, values

from perfd.aggregator import Aggregator
from perfd.aggregator.summary_turns import GPUS_PER_SECOND
from perfd.clock import VirtualClock
from perfd.config import RulesConfig

_GPUS = 8
_JOBS = 4 * GPUS_PER_SECOND // _GPUS // 10
"""Of ten nodes each: a round makes the numbers of a quarter of them."""


class Nodes:
    """Nodes of 8 GPUs in jobs of ten, and a second of all of them after the other."""

    def __init__(self, running: Aggregator, clock: VirtualClock, *, jobs: int, each: int = 10) -> None:
        self._running, self._clock = running, clock
        self._names = [(f"job{job}", f"job{job}-node{node}") for job in range(jobs) for node in range(each)]
        self._seconds = 0
        self.power_w = 500.0
        self.step_time_s: dict[str, float] = {}
        self.stalled: set[str] = set()
        for job, node in self._names:
            first = int(node.rpartition("node")[2]) * _GPUS
            self._apply(node, [place(first + gpu, gpu, job=job) for gpu in range(_GPUS)])

    @property
    def newest_step(self) -> int:
        """Of all jobs."""
        return self._seconds

    def second(self) -> dict[str, float]:
        """All nodes report once, and a round follows: its page."""
        self._seconds += 1
        self._clock.advance(1.0)
        now_s = START_S + self._seconds
        for job, node in self._names:
            records = [gpus(now_s, count=_GPUS, power_w=self.power_w, tensor_active_ratio=0.5)]
            if node.endswith("node0") and job not in self.stalled:
                took_s = self.step_time_s.get(job, 1.0)
                records.append(step(self._seconds, job=job, time_s=now_s, step_time_s=took_s))
            self._apply(node, records)
        self._running.tick()
        return values(self._running.page())

    def alerts(self) -> list[dict]:
        """Those that fired."""
        return self._running.alerts()

    def _apply(self, node: str, records: list) -> None:
        state = self._running.state
        with state.lock:
            state.fleet.apply(records, source(agent=node, node=node, now_s=float(self._seconds)))


def _step_of(job: str) -> str:
    return f'perfd_step{{perfd_job="{job}"}}'


@contextmanager
def nodes(*, jobs: int, rules: RulesConfig | None = None) -> Iterator[Nodes]:
    clock = VirtualClock(round(START_S * 1e9))
    config = {} if rules is None else {"rules": rules}
    with aggregator(clock, **config) as running:
        yield Nodes(running, clock, jobs=jobs)


def test_a_job_whose_steps_change_is_analyzed_in_the_next_round() -> None:
    with nodes(jobs=_JOBS) as fleet:
        for _ in range(16):
            page = fleet.second()
        shown = [page[_step_of(f"job{job}")] for job in range(_JOBS)]
        assert min(shown) < fleet.newest_step
        # The one that is due last.
        name = f"job{max(range(_JOBS), key=lambda job: (shown[job], job))}"
        for _ in range(3):
            fleet.step_time_s[name] = 1.5
            page = fleet.second()
            assert page[_step_of(name)] == fleet.newest_step
        # All others still have their turn.
        for _ in range(8):
            page = fleet.second()
        assert min(page[_step_of(f"job{job}")] for job in range(_JOBS)) > fleet.newest_step - 8


def test_a_job_without_further_steps_is_analyzed_before_its_turn() -> None:
    def looks(fleet: Nodes, name: str) -> int:
        pages = [fleet.second() for _ in range(24)]
        return len({page[f'perfd_goodput_ratio{{perfd_job="{name}"}}'] for page in pages})

    with nodes(jobs=_JOBS) as fleet:
        for _ in range(16):
            fleet.second()
        # Every four seconds, as all others; of a job that stalls it falls with time.
        usual = looks(fleet, "job3")
        fleet.stalled.add("job3")
        assert looks(fleet, "job3") > usual


def test_a_calm_job_has_its_turn_every_30_seconds_and_in_the_next_round_when_it_changes_or_hangs() -> None:
    jobs = 6
    with nodes(jobs=jobs) as fleet:
        shown = []
        for _ in range(90):
            page = fleet.second()
            shown.append([page[_step_of(f"job{job}")] for job in range(jobs)])
        looks = [
            len({row[job] for row in rows}) for rows in (shown[5:30], shown[-30:]) for job in range(jobs)
        ]
        # In as many seconds each: at first about every two, of 480 GPUs.
        assert min(looks[:jobs]) >= 6
        assert max(looks[jobs:]) <= 3
        # The one whose turn comes last.
        name = f"job{max(range(jobs), key=lambda job: shown[-1][job])}"
        fleet.step_time_s[name] = 1.2
        assert fleet.second()[_step_of(name)] == fleet.newest_step
        other = f"job{min(range(jobs), key=lambda job: shown[-1][job])}"
        fleet.stalled.add(other)
        for _ in range(5):
            page = fleet.second()
        assert page[_step_of(other)] == fleet.newest_step - 5


def test_rounds_rest_while_all_jobs_are_calm_and_no_longer_than_rules_about_nodes() -> None:
    jobs = 6
    with nodes(jobs=jobs) as fleet:
        pages = [fleet.second() for _ in range(80)]
        rounds = [page["perfd_round_timestamp_seconds"] for page in pages]
        # Of the last 40 s, every fifth.
        assert 7 <= len(set(rounds[-40:])) <= 9
        assert len(set(rounds[2:25])) > 18
        shown = [[page[_step_of(f"job{job}")] for job in range(jobs)] for page in pages[-40:]]
        # The jobs have their turns all the same.
        assert min(len({row[job] for row in shown}) for job in range(jobs)) >= 2
        # A change ends the rest at once, also for rules: a pending alert is looked at in each round.
        fleet.step_time_s["job3"] = 1.5
        for _ in range(3):
            page = fleet.second()
            assert page[_step_of("job3")] == fleet.newest_step


def test_rules_about_nodes_see_their_newest_values(tmp_path: Path) -> None:
    (tmp_path / "power.yaml").write_text(
        "groups: [{name: power, interval: 5s, rules: "
        "[{alert: PowerHigh, expr: perfd_gpu_power_watts > 600}]}]",
        encoding="utf-8",
    )
    rules = RulesConfig(builtin=False, files=(str(tmp_path / "power.yaml"),))
    with nodes(jobs=_JOBS, rules=rules) as fleet:
        # The group was evaluated at the start, and is next five seconds later.
        for _ in range(5):
            fleet.second()
        for second in range(5):
            fleet.power_w = 500.0 if second < 4 else 700.0
            fleet.second()
            assert len(fleet.alerts()) == (0 if second < 4 else 10 * _JOBS * _GPUS)


def test_what_nodes_read_is_shown_within_five_seconds_and_at_once_of_few_nodes() -> None:
    for jobs, within_s in ((_JOBS, 5), (4, 5), (2, 1)):
        with nodes(jobs=jobs) as fleet:
            for _ in range(7):
                fleet.second()
            fleet.power_w = 650.0
            pages = [fleet.second() for _ in range(within_s)]
            # Those of more nodes are not made in each round.
            powers = {value for page in pages for name, value in page.items() if "gpu_power_watts" in name}
            assert len(powers) == (1 if within_s == 1 else 2)
            shown = [value for name, value in pages[-1].items() if name.startswith("perfd_gpu_power_watts")]
            assert shown == [650.0] * (10 * jobs * _GPUS)
