"""Where files beside the model may come from: where the pods find the model, too."""

from __future__ import annotations


def readable(uri: str, model_uri: str) -> bool:
    """Whether pods that read ``model_uri`` can read ``uri``: it is in the image, of the same claim, or of the same
    kind, with the same Secret."""
    return uri.startswith("file://") or _place(uri) == _place(model_uri)


def cel_readable(uri: str) -> str:
    """The same in CEL, for a rule at ``spec``; ``uri``: the expression of it."""
    same_kind = f"{uri}.split(':')[0] == self.model.uri.split(':')[0]"
    same_claim = f"!{uri}.startsWith('pvc:') || {uri}.split('/')[2] == self.model.uri.split('/')[2]"
    return f"({uri}.startsWith('file:') || ({same_kind} && ({same_claim})))"


def _place(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"pvc://{rest.partition('/')[0]}" if scheme == "pvc" else scheme
