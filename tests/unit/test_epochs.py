"""How far a run is, in epochs and tokens: what is known of it."""

from culm.pipeline.epochs import epoch_of, in_words
from culm.pipeline.identity_parts import samples_in_words, samples_per_epoch
from culm.protos import coordinator_pb2 as pb


def test_epochs_and_tokens_are_told_as_far_as_they_are_known() -> None:
    status = pb.GetStatusResponse(samples_per_step=8, samples_per_epoch=40, tokens_per_step=512)
    assert in_words(status, 7) == "epoch 1.40, 3.6 k tokens"
    assert in_words(pb.GetStatusResponse(samples_per_step=8, tokens_per_step=512), 10**9) == "512.0 G tokens"
    assert in_words(pb.GetStatusResponse(samples_per_step=8), 7) == ""
    assert epoch_of(pb.GetStatusResponse(samples_per_step=8), 7) is None


def test_the_length_of_a_dataset_is_what_the_nodes_have_agreed_on() -> None:
    assert samples_per_epoch({"samples": samples_in_words(1797, "ab12")}) == 1797
    assert samples_per_epoch({"samples": samples_in_words(None, "ab12")}) == 0, "nobody knows of an iterable one"
    assert samples_per_epoch({}) == 0, "nobody compares datasets"
