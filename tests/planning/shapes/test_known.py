"""Shapes of published models, against the parameters that their pages give."""

from __future__ import annotations

import pytest

from rl_compat.planning.shapes.known import KNOWN_SHAPES

PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
}


@pytest.mark.parametrize("name", KNOWN_SHAPES)
def test_a_shape_adds_up_to_the_published_parameters(name: str) -> None:
    assert KNOWN_SHAPES[name].num_parameters == PUBLISHED[name]
    assert KNOWN_SHAPES[name].exact


CARDS = {
    "Qwen/Qwen2.5-0.5B-Instruct": (0.49, 0.36),
    "Qwen/Qwen2.5-1.5B-Instruct": (1.54, 1.31),
    "Qwen/Qwen2.5-3B-Instruct": (3.09, 2.77),
    "Qwen/Qwen2.5-7B-Instruct": (7.61, 6.53),
    "Qwen/Qwen2.5-14B-Instruct": (14.7, 13.1),
    "Qwen/Qwen2.5-32B-Instruct": (32.5, 31.0),
    "Qwen/Qwen3-0.6B": (0.6, 0.44),
    "Qwen/Qwen3-1.7B": (1.7, 1.4),
    "Qwen/Qwen3-4B": (4.0, 3.6),
    "Qwen/Qwen3-8B": (8.2, 6.95),
    "Qwen/Qwen3-14B": (14.8, 13.2),
    "Qwen/Qwen3-32B": (32.8, 31.2),
}
"billions of parameters by the model card: all, and those without embeddings"


@pytest.mark.parametrize("name", CARDS)
def test_what_the_card_counts_is_near_with_and_without_embeddings(name: str) -> None:
    shape, (total, without) = KNOWN_SHAPES[name], CARDS[name]
    embeddings = shape.embedding_parameters * (1 if shape.tie_word_embeddings else 2)

    assert shape.num_parameters / 1e9 == pytest.approx(total, rel=0.015)
    assert (shape.num_parameters - embeddings) / 1e9 == pytest.approx(without, rel=0.015)


def test_the_shapes_are_ordered_by_their_parameters() -> None:
    sizes = [shape.num_parameters for shape in KNOWN_SHAPES.values()]

    assert sizes == sorted(sizes)
    assert set(KNOWN_SHAPES) == set(PUBLISHED)
