"""What the events of a run say in numbers."""

from culm.pipeline import job_sections
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import Committed, Evaluated, Event, Measured, Planned, RolledBack
from culm.trackers.scalars import Scalars


def entry(event: Event, at: float = 0.0) -> Entry:
    return Entry(sequence=1, time=at, kind=event.kind, text="", step=0, generation=1, event=event)


def numbers(scalars: Scalars, event: Event, at: float = 0.0) -> dict[str, tuple[int, float]]:
    return {scalar.name: (scalar.step, scalar.value) for scalar in scalars.of(entry(event, at))}


def test_a_commit_tells_its_loss_and_how_fast_the_step_was() -> None:
    scalars = Scalars(lambda name: -1)
    assert numbers(scalars, Planned(samples_per_step=8, tokens_per_step=800)) == {}
    assert numbers(scalars, Committed(step=0, loss=2.0), 10.0) == {"train/loss": (1, 2.0)}
    assert numbers(scalars, Committed(step=1, loss=1.5), 12.0) == {
        "train/loss": (2, 1.5),
        "train/samples_per_second": (2, 4.0),
        "train/tokens_per_second": (2, 400.0),
    }
    assert numbers(scalars, Committed(step=5, loss=1.0), 13.0) == {"train/loss": (6, 1.0)}, "not the step before"


def test_the_epoch_is_told_where_somebody_knows_how_long_one_is() -> None:
    scalars = Scalars(lambda name: -1)
    numbers(scalars, Planned(samples_per_step=8, samples_per_epoch=32))
    assert numbers(scalars, Committed(step=4, loss=1.0)) == {"train/loss": (5, 1.0), "train/epoch": (5, 1.25)}


def test_a_job_that_clips_tells_the_gradients_norm() -> None:
    found = numbers(Scalars(lambda name: -1), Committed(step=4, loss=1.0, scale=0.5, norm=2.0))
    assert found == {"train/loss": (5, 1.0), "train/gradient_norm": (5, 2.0)}


def test_a_learning_rate_is_told_where_there_is_one() -> None:
    found = numbers(Scalars(lambda name: -1), Committed(step=4, loss=1.0, learning_rate=0.0))
    assert found == {"train/loss": (5, 1.0), "train/learning_rate": (5, 0.0)}, "a warmup may begin with 0"


def test_an_evaluation_stands_at_the_steps_that_were_trained() -> None:
    scalars = Scalars(lambda name: -1)
    assert numbers(scalars, Measured(step=3, metrics={"accuracy": 0.5})) == {"train/accuracy": (4, 0.5)}
    found = numbers(scalars, Evaluated(step=4, loss=0.5, metrics={"accuracy": 0.75}))
    assert found == {"evaluate/loss": (4, 0.5), "evaluate/accuracy": (4, 0.75)}


def test_what_is_told_again_is_not_new() -> None:
    scalars = Scalars(lambda name: 2 if name == "train/loss" else -1)
    told = [numbers(scalars, Committed(step=step, loss=1.0)) for step in range(4)]
    assert told == [{}, {}, {"train/loss": (3, 1.0)}, {"train/loss": (4, 1.0)}]
    assert numbers(scalars, RolledBack(step=1)) == {}
    assert [numbers(scalars, Committed(step=step, loss=1.0)) for step in (1, 2, 3)] == [{}, {}, {}]
    assert numbers(scalars, Evaluated(step=1, loss=0.5)) == {"evaluate/loss": (1, 0.5)}


def test_no_metric_of_a_job_has_the_name_of_a_number_that_is_told_anyhow() -> None:
    """It would be written twice, and the tracker would keep one of the two."""
    scalars = Scalars(lambda name: -1)
    numbers(scalars, Planned(samples_per_step=8, tokens_per_step=80, samples_per_epoch=32))
    numbers(scalars, Committed(step=0, loss=1.0), 1.0)
    told = numbers(scalars, Committed(step=1, loss=1.0, norm=2.0, learning_rate=0.1), 2.0)
    assert {name.removeprefix("train/") for name in told} <= {*job_sections._TAKEN}
