"""SmoothQuant+'s exponent: the one with which the whole model's outputs change least (Pan et al., arXiv 2312.03788).

Beyond the paper, not to smooth is tried, too: so the loss on the calibration is never above that of plain rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from blade_llm.quantization.smoothquant_plus import ALPHAS, AlphaSearch, search_alpha
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.recording import CalibrationMethod, Recorder
from blade_llm.quantize.calibration.samples import batches_of

TRIED: Final[tuple[float | None, ...]] = (None, *ALPHAS)
"""None: no scales at all."""


def find_smoothing(layerwise: Layerwise, done: Callable[[str], None]) -> AlphaSearch:
    """Try all of :data:`TRIED` side by side, layer by layer, on the first calibration samples.

    The loss is the squared difference of the states after the last norm from the original's. ``done``: called with what
    is done. Raises ``ValueError`` where no exponent gives a finite loss,
    :class:`~blade_llm.models.errors.ModelFilesError` for weights that cannot be quantised.
    """
    model, samples = layerwise.model, layerwise.samples
    batch = batches_of(samples, samples.calibrating)[0]
    original = model.embedded()[batch.rows].clone()
    begin = model.embedded(quantized=True)[batch.rows] if model.rounds_embeddings else original
    states = {alpha: begin.clone() for alpha in TRIED}
    for index in range(layerwise.num_layers):
        groups = layerwise.groups(index)
        places = [place for group in groups for place in group.places if layerwise.quantizer.quantized(place)]
        recorder = Recorder(places, hessians=False)
        layer = model.layer(index, CalibrationMethod(dict(layerwise.tensors.linears), recorder))
        original = model.compute(layer, index, original, batch)
        del layer
        inputs = {place: recorder.inputs(place) for place in places}
        for alpha, x in states.items():
            result = layerwise.quantizer.quantize(groups, inputs, alpha)
            layerwise.compute_quantized(index, result, x, x, [batch])
            done(f"smoothing, layer {index}, {'no exponent' if alpha is None else f'exponent {alpha:g}'}")
    target = model.normalised(original).double()

    def loss(alpha: float | None) -> float:
        return float((model.normalised(states[alpha]).double() - target).square().sum())

    return search_alpha(loss, unsmoothed=loss(None))
