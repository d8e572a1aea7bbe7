"""What is handed to W&B, when, and what happens when W&B does not take it."""

import msgspec
import pytest
from exporters.rounds import job_round
from exporters.support import alert, context

from perfd.config import WandbConfig, WandbTeam
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.wandb.wandb_exporter import REPORT_FILE, SUMMARY_FILE, WandbExporter
from perfd.exporters.wandb.wandb_messages import LogNumbers, SaveReport, SendAlert
from perfd.exporters.wandb.wandb_runs import RunLostError


class FakeWandb:
    """Runs that remember what they were sent. `broken` runs fail, and while `away`, none opens.

    When it `dies`, it is over another job's message.
    """

    def __init__(self):
        self.sent = {}
        self.running = set()
        self.refused = set()
        self.configs = {}
        self.dies = False
        self.ended = []
        self.opened = []
        self.away = False
        self.broken = False

    def open(self, job, config, labels):
        if job in self.running:
            return
        if self.away or job in self.refused:
            raise OSError("nobody answers")
        self.opened.append(job)
        self.configs[job] = config
        self.running.add(job)

    def send(self, job, message):
        if self.dies:
            self.running.clear()
            self.dies = False
            raise RunLostError("another job's message")
        if self.broken:
            self.running.discard(job)
            raise OSError("it is gone")
        self.sent.setdefault(job, []).append(message)

    def close(self, job):
        self.running.discard(job)
        self.ended.append(job)

    def close_all(self):
        self.ended += sorted(self.running)

    def rows(self, job="llm"):
        return [
            int(message.row["perfd/step"])
            for message in self.sent.get(job, [])
            if type(message) is LogNumbers
        ]


def exporter(wandb, given, **options):
    return WandbExporter(WandbConfig(mode="offline", **options), given, runs=wandb)


def rounds(*steps, **options):
    return [Round(time_unix_s=float(step), jobs=[job_round(step, **options)]) for step in steps]


def test_each_step_is_one_row_however_often_a_round_comes():
    wandb, given = FakeWandb(), context()
    tested = exporter(wandb, given)
    for round_ in rounds(1, 1, 2, 2, 2, 5):
        tested.export(round_)
    assert wandb.rows() == [1, 2, 5]
    assert given.tally.sent == 3


def test_steps_that_are_made_again_after_a_restart_are_distinguished_by_the_attempt():
    wandb = FakeWandb()
    tested = exporter(wandb, context())
    for round_ in (*rounds(10), *rounds(9, 10, attempt=2)):
        tested.export(round_)
    positions = [(message.row["perfd/attempt"], message.row["perfd/step"]) for message in wandb.sent["llm"]]
    assert positions == [(1, 10), (2, 9), (2, 10)]


def test_a_row_holds_what_is_known_and_nothing_else():
    wandb = FakeWandb()
    exporter(wandb, context()).export(rounds(3, mfu_ratio=0.41, tokens_per_s=None)[0])
    row = wandb.sent["llm"][0].row
    assert row["perfd/mfu_ratio"] == 0.41
    assert "perfd/tokens_per_s" not in row


def test_rows_and_alerts_wait_in_order_while_wandb_is_away_and_none_is_lost():
    wandb, given = FakeWandb(), context()
    wandb.away = True
    tested = exporter(wandb, given)
    for step, round_ in enumerate(rounds(1, 2, 3)):
        tested.export(round_)
        assert given.tally.pending == step + 1
    tested.export(
        Round(time_unix_s=4.0, jobs=[job_round(3)], changes=[alert(perfd_job="llm", severity="critical")])
    )
    wandb.away = False
    given.clock.advance(100.0)
    tested.export(rounds(4)[0])
    assert [type(message) for message in wandb.sent["llm"]] == [
        LogNumbers,
        LogNumbers,
        LogNumbers,
        SendAlert,
        LogNumbers,
    ]
    assert wandb.sent["llm"][3].level == "ERROR"
    assert (given.tally.lost, given.tally.pending) == (0, 0)


def test_beyond_the_bound_the_oldest_rows_go_and_are_counted():
    wandb, given = FakeWandb(), context()
    wandb.away = True
    tested = exporter(wandb, given)
    for round_ in rounds(*range(10_005)):
        tested.export(round_)
    assert (given.tally.lost, given.tally.pending) == (5, 10_000)


def test_attempts_to_open_a_run_become_rarer():
    wandb, given = FakeWandb(), context()
    wandb.away = True
    tested = exporter(wandb, given)
    for step in range(100):
        tested.export(rounds(step)[0])
        given.clock.advance(1.0)
    assert given.tally.retries == 7


def test_a_run_that_breaks_is_opened_again_and_only_the_row_in_flight_is_lost():
    wandb, given = FakeWandb(), context()
    tested = exporter(wandb, given)
    tested.export(rounds(1)[0])
    wandb.broken = True
    tested.export(rounds(2)[0])
    tested.export(rounds(3)[0])
    wandb.broken = False
    given.clock.advance(10.0)
    tested.export(rounds(4)[0])
    assert wandb.rows() == [1, 3, 4]
    assert wandb.opened == ["llm", "llm"]
    assert (given.tally.lost, given.tally.retries) == (1, 1)


def test_a_run_that_ends_over_another_jobs_message_is_opened_again_and_nothing_is_lost():
    wandb, given = FakeWandb(), context()
    tested = exporter(wandb, given)
    tested.export(rounds(1)[0])
    wandb.dies = True
    tested.export(rounds(2)[0])
    tested.export(rounds(3)[0])
    assert wandb.rows() == [1, 2, 3]
    assert wandb.opened == ["llm", "llm"]
    assert (given.tally.lost, given.tally.retries) == (0, 1)


TEAMS = [
    {"match": {"account": "vision*"}, "project": "vision", "entity": "cv", "api_key_variable": "VISION_KEY"},
    {"match": {"namespace": "nlp", "user": "ada"}, "tags": ["ada"]},
    {"match": {"account": "vision2"}, "project": "never"},
]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"account": "vision2"}, ("vision", "cv", None, "VISION_KEY", ["all"])),
        ({"namespace": "nlp", "user": "ada"}, ("perfd", None, "key", None, ["all", "ada"])),
        ({"namespace": "nlp"}, ("perfd", None, "key", None, ["all"])),
        ({"account": "Vision"}, ("perfd", None, "key", None, ["all"])),
        ({}, ("perfd", None, "key", None, ["all"])),
    ],
)
def test_the_first_team_whose_labels_all_match_decides_where_a_job_goes(
    labels, wanted, monkeypatch, tmp_path
):
    monkeypatch.setenv("VISION_KEY", "v" * 40)
    (tmp_path / "key").write_text("k" * 40)
    wandb = FakeWandb()
    key = str(tmp_path / "key")
    tested = exporter(
        wandb, context(), tags=["all"], api_key_file=key, teams=msgspec.convert(TEAMS, list[WandbTeam])
    )
    tested.export(rounds(1, labels={"perfd_job": "llm", **labels})[0])
    config = wandb.configs["llm"]
    found = (config.project, config.entity, config.api_key_file, config.api_key_variable, config.tags)
    assert found == tuple(key if value == "key" else value for value in wanted)


def test_one_job_that_cannot_open_its_run_holds_up_no_other():
    wandb, given = FakeWandb(), context()

    wandb.refused.add("bad")
    tested = exporter(wandb, given)
    tested.export(Round(time_unix_s=0.0, jobs=[job_round(1, name="bad"), job_round(1, name="good")]))
    assert wandb.rows("good") == [1]


def test_a_job_that_ended_leaves_its_report_and_makes_room_for_another():
    wandb, given = FakeWandb(), context()
    tested = exporter(wandb, given, max_runs=1)
    tested.export(rounds(1)[0])
    ended = job_round(2, ended=True)
    tested.export(Round(time_unix_s=2.0, jobs=[ended], finals=[ended.summary]))
    tested.export(Round(time_unix_s=3.0, jobs=[ended, job_round(1, name="next")]))
    report = wandb.sent["llm"][-1]
    assert type(report) is SaveReport
    assert set(report.files) == {SUMMARY_FILE, REPORT_FILE}
    assert report.numbers["perfd/final/step_time_s"] == 1.0
    assert wandb.ended == ["llm"]
    assert wandb.rows("next") == [1]
    assert wandb.opened == ["llm", "next"]


def test_a_job_that_the_aggregator_forgot_makes_room_once_its_rows_are_there():
    wandb, given = FakeWandb(), context()
    wandb.away = True
    tested = exporter(wandb, given, max_runs=1)
    tested.export(rounds(1)[0])
    tested.export(Round(time_unix_s=2.0))
    assert given.tally.pending == 1
    wandb.away = False
    given.clock.advance(10.0)
    tested.export(Round(time_unix_s=3.0))
    tested.export(Round(time_unix_s=4.0, jobs=[job_round(1, name="next")]))
    assert (wandb.rows(), wandb.rows("next")) == ([1], [1])
    assert wandb.ended == ["llm"]


def test_jobs_beyond_the_bound_are_counted():
    wandb, given = FakeWandb(), context()
    tested = exporter(wandb, given, max_runs=1)
    tested.export(Round(time_unix_s=0.0, jobs=[job_round(1), job_round(1, name="other")]))
    assert wandb.opened == ["llm"]
    assert given.tally.lost == 1


def test_an_alert_is_reported_once_where_its_job_is():
    wandb = FakeWandb()
    tested = exporter(wandb, context())
    tested.export(Round(time_unix_s=0.0, jobs=[job_round(1), job_round(1, name="other")]))
    both = [job_round(1), job_round(1, name="other")]
    tested.export(
        Round(time_unix_s=1.0, jobs=both, changes=[alert("Mine", perfd_job="other"), alert("Nobodys")])
    )
    tested.export(Round(time_unix_s=2.0, jobs=both, changes=[alert("Mine", perfd_job="other", resolved=2.0)]))
    reported = [
        (job, message.title)
        for job, sent in wandb.sent.items()
        for message in sent
        if type(message) is SendAlert
    ]
    assert reported == [("other", "Mine")]


def test_at_the_end_what_no_run_took_is_counted_as_lost():
    wandb, given = FakeWandb(), context()
    wandb.away = True
    tested = exporter(wandb, given)
    tested.export(rounds(1)[0])
    tested.close()
    assert (given.tally.lost, given.tally.pending) == (1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"run_id": "{rank}"}, "may contain {job}"),
        ({"group": "{0}"}, "may contain {job}"),
        ({"api_key_file": "/nowhere/key"}, "cannot read /nowhere/key"),
        ({"api_key_variable": "NO_SUCH_KEY"}, "api_key_variable: NO_SUCH_KEY is not set"),
        ({"tags": ["x" * 65]}, "1 to 64 characters"),
        ({"teams": [WandbTeam(match={"team": "a"})]}, r"teams\[0\].match: 'team' is not a label"),
        ({"teams": [WandbTeam(match={})]}, "it is empty"),
        ({"teams": [WandbTeam(match={"user": "a"}, api_key_file="/no/key")]}, r"teams\[0\].api_key_file"),
    ],
)
def test_a_mistake_in_the_configuration_is_reported_at_the_start(options, words):
    with pytest.raises(ConfigError, match=words):
        exporter(FakeWandb(), context(), **options)
