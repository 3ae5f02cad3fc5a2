"""Vision towers: what makes embeddings for a text model out of the pixels of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from blade_llm.spec.mlp import Activation, MLPSpec
from blade_llm.spec.norm import NormSpec

Grid = tuple[int, int, int]
"""Frames (after temporal merging), rows and columns, in patches, as
:attr:`~blade_llm.spec.vision.images.ImageSpan.grid`."""
TowerFamily = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl"]
"""Whose names the tensors have."""

ATTENTION_WEIGHT: Final = 2
"""How often a multiplication of attention counts, which takes about so much longer than one of a linear layer."""


@dataclass(frozen=True, slots=True)
class MergerSpec:
    """Makes one embedding of ``merge_size`` x ``merge_size`` patches: ``down(act(up(norm(patches))))``."""

    inner: int
    norm: NormSpec
    activation: Activation = "gelu"
    norm_merged: bool = False
    """The patches of an embedding are normalised together, not one by one."""


@dataclass(frozen=True, slots=True)
class PositionTable:
    """Learned positions of a square image, which are added to the patches."""

    side: int
    """Rows, and columns, of the table."""
    interpolated: bool = True
    """Other images interpolate it bilinearly, corner to corner; else there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """A vision transformer (Dosovitskiy et al., arXiv 2010.11929) and its projector: Qwen2-VL (Wang et al., arXiv
    2409.12191), Qwen2.5-VL (Bai et al., arXiv 2502.13923), Qwen3-VL (Bai et al., arXiv 2511.21631), InternVL (Chen et
    al., arXiv 2312.14238).

    The patches of an image are in the order of the embeddings that they make: the ``merge_size`` ** 2 patches of one
    embedding one after the other. Patches of one frame see each other, never those of another frame or image.
    """

    family: TowerFamily
    image_token: int
    """Id of the token that a prompt has for each embedding of an image."""
    video_token: int | None
    hidden_size: int
    """Of the embeddings, which is that of the text model."""
    width: int
    """Of the hidden states in the tower."""
    num_layers: int
    num_heads: int
    mlp: MLPSpec
    norm: NormSpec
    """Before attention and before the MLP of each layer."""
    merger: MergerSpec
    patch_size: int
    """Pixels on each side of a patch."""
    temporal_patch_size: int
    """Frames that a patch spans; the frame of a single image is repeated so often."""
    merge_size: int
    """Patches on each side of the square that makes one embedding."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale: float
    """A pixel becomes ``(pixel * rescale - mean) / std``."""
    qkv_bias: bool = True
    patch_bias: bool = False
    rope_theta: float | None = None
    """Of rotary positions: the first half of a head's pairs of dimensions turns with the row, the other with the
    column. None: there are none."""
    positions: PositionTable | None = None
    window: int = 0
    """Patches on each side of the squares within which attention stays, a multiple of ``merge_size``; 0: it spans the
    frame."""
    full_layers: tuple[int, ...] = ()
    """Layers whose attention spans the frame where the others' stays in windows."""
    deepstack: tuple[int, ...] = ()
    """Layers after which hidden states are merged as well, to be added to those of the text model (Meng et al., arXiv
    2406.04334). Ascending."""
    deepstack_merger: MergerSpec | None = None
    class_token: bool = False
    """Each frame begins with a learned row that makes no embedding."""
    layer_scale: bool = False
    """What attention and MLP add to the hidden states is multiplied by a vector each (Touvron et al., arXiv
    2103.17239)."""

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(
                f"hidden size {self.width} of the vision tower is not a multiple of {self.num_heads} heads"
            )
        if self.rope_theta is not None and self.head_dim % 4:
            raise ValueError(f"heads of {self.head_dim} dimensions cannot turn with rows and columns")
        if self.window % self.merge_size:
            raise ValueError(f"windows of {self.window} patches do not divide into squares of {self.merge_size}")
        if any(not 0 <= layer < self.num_layers for layer in (*self.full_layers, *self.deepstack)):
            raise ValueError(f"the vision tower has {self.num_layers} layers, not the ones that are named")
        if list(self.deepstack) != sorted(set(self.deepstack)) or bool(self.deepstack) != bool(self.deepstack_merger):
            raise ValueError("deepstack layers must ascend, and have a merger")

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.width // self.num_heads

    @property
    def levels(self) -> int:
        """Layers of the text model to whose hidden states something is added besides (deepstack); 0: none."""
        return len(self.deepstack)

    @property
    def embedding_elements(self) -> int:
        """Numbers that an image token is fed with, deepstack levels included."""
        return self.hidden_size * (1 + self.levels)

    @property
    def patch_elements(self) -> int:
        """Numbers that make one patch."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merged(self) -> int:
        """Patches that make one embedding."""
        return self.merge_size**2

    def rows(self, grid: Grid) -> int:
        """Rows of the tower's hidden states that an image has."""
        frames, height, width = grid
        return frames * (height * width + self.class_token)

    def count(self, grid: Grid) -> int:
        """Embeddings of an image, that is image tokens. Raises ``ValueError`` for a grid that the tower cannot have."""
        frames, height, width = grid
        if min(grid) < 1 or height % self.merge_size or width % self.merge_size:
            raise ValueError(f"{height} x {width} patches do not divide into squares of {self.merge_size}")
        side = None if self.positions is None or self.positions.interpolated else self.positions.side
        if side is not None and (height, width) != (side, side):
            raise ValueError(f"{height} x {width} patches are not the {side} x {side} that the tower has positions for")
        return frames * height * width // self.merged

    def pixel_shapes(self, grid: Grid) -> set[tuple[int, int, int, int]]:
        """Shapes of the pixels that make ``grid``, as :attr:`~blade_llm.spec.vision.images.ImagePixels.shape`: a single
        frame may come once, to be repeated."""
        frames, height, width = grid
        counts = {1, self.temporal_patch_size} if frames == 1 else {frames * self.temporal_patch_size}
        return {(count, height * self.patch_size, width * self.patch_size, 3) for count in counts}

    @property
    def row_products(self) -> int:
        """Multiplications that one row takes in the linear layers of one layer: those of one row-layer."""
        return self.width * (4 * self.width + (3 if self.mlp.gated else 2) * self.mlp.inner)

    @property
    def pair_products(self) -> int:
        """As which a query and a key of one head count."""
        return ATTENTION_WEIGHT * 2 * self.head_dim

    def merger_products(self, merger: MergerSpec) -> int:
        """Multiplications that ``merger`` takes for one embedding."""
        return merger.inner * (self.merged * self.width + self.hidden_size)

    def work(self, grid: Grid) -> int:
        """Row-layers that an image takes, as the tower counts them: one is what a row takes in the linear layers of one
        layer, and attention, patches and mergers count by their multiplications."""
        frames, height, width = grid
        windowed = self.num_layers - len(self.full_layers) if self.window else 0
        pairs = (self.num_layers - windowed) * (height * width + self.class_token) ** 2
        if windowed:
            pairs += windowed * _squares(height, self.window) * _squares(width, self.window)
        products = self.rows(grid) * (self.width * self.patch_elements + self.num_layers * self.row_products)
        mergers = self.merger_products(self.merger)
        if self.deepstack_merger is not None:
            mergers += self.levels * self.merger_products(self.deepstack_merger)
        products += self.pair_products * self.num_heads * frames * pairs + self.count(grid) * mergers
        return -(-products // self.row_products)


def _squares(length: int, window: int) -> int:
    """Sum of the squares of the pieces that ``length`` is cut into."""
    whole, rest = divmod(length, window)
    return whole * window**2 + rest**2
