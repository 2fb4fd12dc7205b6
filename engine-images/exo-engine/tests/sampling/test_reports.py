"""Reports of log-probabilities come to the host in one copy, with the tokens, and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exo_engine.sampling.logprobs import measure_logprobs
from exo_engine.sampling.sampler import Samples, unpack


@pytest.mark.parametrize("num_top", [(0, 0), (2, 5), (7, 9), (20, 0)])
def test_what_was_packed_comes_back(num_top):
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    logits[1, 3] = -torch.inf
    tokens = torch.tensor([4, 3])
    found = measure_logprobs(logits, tokens, num_top)
    reports = found.unpack(found.packed.numpy())
    expected = logits.log_softmax(dim=-1)
    for row, report in enumerate(reports):
        assert report.token_id == tokens[row]
        assert report.logprob == expected[row, tokens[row]].item()
        assert report.rank == 1 + int((expected[row] > expected[row, tokens[row]]).sum())
        best = expected[row].topk(min(num_top[row], 8))
        assert report.top == tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_tokens_and_reports_are_one_copy():
    logits, tokens = torch.randn(3, 8), torch.tensor([1, 2, 3])
    rows = np.array([0, 2])
    found = measure_logprobs(logits[rows], tokens[rows], (1, 2))
    samples = Samples(tokens, torch.tensor([True, False, True]), tokens > 0, found, rows)
    packed = samples.packed.numpy()
    token_ids, are_valid, are_finite = unpack(packed[:3])
    assert token_ids.tolist() == [1, 2, 3]
    assert are_valid.tolist() == [True, False, True]
    assert are_finite.tolist() == [True, True, True]
    reports = samples.reports(packed[3:])
    assert list(reports) == [0, 2]
    assert [len(report.top) for report in reports.values()] == [1, 2]
