"""A job on an accelerator: a kill changes no bit there either. Runs where there is one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from culm.local.cards import VISIBLE, card_for, cards_of
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.pipeline.tensors.bits import digest_of
from culm.pipeline.user_code.devices import device_of
from culm.terminal.outcome import RunFailed

EXAMPLES = Path(__file__).parents[2] / "examples"


needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@needs_a_card
@pytest.mark.parametrize("redundancy", ["lazy", "eager"])
def test_a_kill_on_an_accelerator_changes_no_bit(redundancy: str, tmp_path: Path) -> None:
    changes = ["job.device=cuda", "job.steps=12", "pipeline.stages=3", f"resilience.redundancy={redundancy}"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 3, [Kill("n1", 6, "1B2")], folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


@needs_a_card
def test_standbys_in_the_hosts_memory_change_no_bit(tmp_path: Path) -> None:
    """One of them becomes the owner, and another one is seeded in its place."""
    changes = ["job.device=cuda", "job.steps=12", "pipeline.stages=3", "resilience.standby=host"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 4, [Kill("n1", 6, "1B2")], folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == run_plain(job).sha256


@needs_a_card
@pytest.mark.parametrize("precision", ["float32", "bf16-mixed", "bf16"])
def test_attention_on_a_card_gives_the_same_bits_each_time(precision: str) -> None:
    """Its fastest backwards add in the order in which threads come, and torch only warned of that."""
    job = load_job(EXAMPLES / "stdlib_gpt.toml", ["job.device=cuda"])
    device = device_of(job)
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True).to(device)
    x = torch.randn(1, 4096, 256, device=device, requires_grad=True)
    if precision == "bf16":
        block, x = block.bfloat16(), x.detach().bfloat16().requires_grad_()
    found = set()
    for _ in range(10):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
            output = block(x)
        gradients = torch.autograd.grad(output.sum(), [x, *block.parameters()])
        found.add(tuple(digest_of(gradient.cpu()) for gradient in gradients))
    assert len(found) == 1


def pooled() -> list[nn.Module]:
    """torch has no backward of an adaptive pooling for a card that it calls deterministic."""
    pool = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.AdaptiveAvgPool2d(3), nn.Flatten())
    return [nn.Flatten(), nn.Linear(64, 64), pool, nn.Linear(9, 10)]


@needs_a_card
def test_an_operation_whose_bits_may_vary_on_a_card_ends_the_run(tmp_path: Path) -> None:
    changes = ["job.device=cuda", f"model.layers={__name__}:pooled", "model.args={}", "pipeline.stages=2"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with (
        LocalCluster(job, EXAMPLES.parent, 2, [], folder=tmp_path / "run") as cluster,
        pytest.raises(
            RunFailed,
            match=r"adaptive_avg_pool2d\w* does not have a .*; its bits may vary.* AvgPool2d",
        ),
    ):
        train(cluster, lambda status, events, outcome: None)


@needs_a_card
@pytest.mark.parametrize("settings", [["train.precision=bf16-mixed"], ["resilience.standby=host"], []], ids=str)
def test_a_language_model_on_a_card_changes_no_bit(settings: list[str], tmp_path: Path) -> None:
    changes = ["job.device=cuda", "job.steps=10", *settings]
    job = load_job(EXAMPLES / "stdlib_gpt_grid.toml", changes)
    kills = [Kill("n1", 4, "1B1"), Kill("n2", 7, "commit")]
    with LocalCluster(job, EXAMPLES, 4, kills, folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert sorted(loss["node"] for loss in outcome.losses_of_nodes) == ["n1", "n2"]
    assert outcome.sha256 == run_plain(job).sha256


@needs_a_card
def test_a_checkpoint_of_a_card_goes_on_in_another_shape(tmp_path: Path) -> None:
    """From three stages to two; before that stage 1's owner and its standby are lost at once."""
    url = (tmp_path / "ck").as_uri()
    changes = ["job.device=cuda", "resilience.standby=host", f"checkpoint.url={url}", "checkpoint.every=2"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=6", "pipeline.stages=3"])
    kills = [Kill("n0", 4, "1B1"), Kill("n1", 4, "1B1")]
    with LocalCluster(job, EXAMPLES, 3, kills, folder=tmp_path / "first") as cluster:
        train(cluster, lambda status, events, outcome: None)
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=10", "pipeline.stages=2"])
    with LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "second", resume=url) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == run_plain(job).sha256


KILLS = [
    [],
    [Kill("n1", 5, "1B1")],
    [Kill("n2", 5, "sum")],
    [Kill("n0", 4, "send"), Kill("n3", 7, "p1/1B2")],
]


@needs_a_card
@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: ", ".join(map(str, kills)) or "calm")
def test_a_grid_of_two_by_two_on_one_card_changes_no_bit(kills: list[Kill], tmp_path: Path) -> None:
    """Norms of the clipped gradient as well: a reducer takes them on the card, whoever's blocks it adds up."""
    changes = ["job.device=cuda", "job.steps=10", "pipeline.stages=2", "pipeline.pipelines=2"]
    changes += ["pipeline.microbatches=3", "data.microbatch=8", "train.clip_norm=0.5"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    with LocalCluster(job, EXAMPLES, 4, kills, folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert sorted(loss["node"] for loss in outcome.losses_of_nodes) == sorted(kill.node for kill in kills)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_a_machine_without_an_accelerator_says_so() -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.device=cuda"])
    with pytest.raises(JobError, match=r"no CUDA device.*job\.device|job\.device.*no CUDA device"):
        device_of(job)


@pytest.mark.parametrize(
    ("shown", "cards"),
    [("2,GPU-ab", ["2", "GPU-ab"]), (" 1 , 0 ", ["1", "0"]), ("", []), ("-1", []), ("0,-1,1", ["0"]), ("3,,1", ["3"])],
)
def test_nodes_of_one_machine_take_its_cards_in_turn(shown: str, cards: list[str]) -> None:
    assert cards_of({VISIBLE: shown}) == cards
    turns = [card_for(number, cards) for number in range(3)]
    assert turns == [{VISIBLE: cards[number % len(cards)]} if cards else {} for number in range(3)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_each_node_is_shown_a_card_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none here: a node names the variable that leaves it without one."""
    monkeypatch.setenv(VISIBLE, "5,7")
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.device=cuda", "pipeline.stages=2"])
    with (
        LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "run") as cluster,
        pytest.raises(RunFailed, match=rf"{VISIBLE}='[57]' leaves this node no CUDA device"),
    ):
        train(cluster, lambda status, events, outcome: None)
    for node, card in (("n0", 5), ("n1", 7)):
        assert f"{VISIBLE}='{card}' leaves" in (tmp_path / "run" / f"{node}.log").read_text()
