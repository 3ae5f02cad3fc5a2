"""Usage by key and model, with as many labels as Prometheus can bear: clients and keys come and go for years."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

MAX_LABELS = 100
"""Label values of keys, and of models, that are kept apart; further ones are counted as ``OTHER``."""
MAX_UNLISTED = 10
"""Of these, models that neither the configuration nor an engine lists: clients choose their names."""
LABEL_LENGTH = 256
"""Characters of a model's name that are kept."""
MAX_ACCOUNTS = 1000
"""Pairs of the two."""
OTHER = "other"
_STATUSES = frozenset((*range(200, 207), *range(300, 309), *range(400, 432), 451, 499, *range(500, 512)))


class Account:
    """The usage of one key and one model."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[int, int] = defaultdict(int)
        """By status."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def count(self, status: int) -> None:
        """Count a request. A status that HTTP does not know, as a broken engine may send it, counts as its hundred."""
        self.requests[status if status in _STATUSES else status // 100 * 100] += 1

    def add(self, other: "Account") -> None:
        for status, count in other.requests.items():
            self.requests[status] += count
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens


class Accounts:
    """The accounts by key and model.

    Args:
        is_listed: whether the configuration or an engine lists a model of that name.
        may_be_model: whether a model of that name may exist all the same, as a request for it succeeded.
    """

    def __init__(self, is_listed: Callable[[str], bool], may_be_model: Callable[[], bool]) -> None:
        self.all: dict[tuple[str, str], Account] = {}
        self._is_listed = is_listed
        self._may_be_model = may_be_model
        self._keys: set[str] = set()
        self._models: set[str] = set()
        self._unlisted: set[str] = set()

    def find(self, key: str, model: str, status: int) -> Account:
        """The account of a request, or the shared one of surplus labels.

        Args:
            status: what the request ended with: names in requests that failed are anybody's invention.
        """
        return self.all.get((key, model)) or self._open(key, model, status)

    def key_label(self, key: str) -> str:
        """What requests of a key are counted as."""
        return key if key in self._keys or len(self._keys) < MAX_LABELS else OTHER

    def set_keys(self, names: Collection[str]) -> None:
        """There are exactly these keys from now on: what others used is counted as that of ``OTHER``."""
        gone = self._keys.difference(names, ("",))
        for key, model in [pair for pair in self.all if pair[0] in gone]:
            account = self.all.pop((key, model))
            self.all.setdefault((OTHER, model), Account()).add(account)
        self._keys -= gone

    def __iter__(self) -> Iterator[Account]:
        return iter(self.all.values())

    def _open(self, key: str, model: str, status: int) -> Account:
        key = self.key_label(key)
        if model:
            model = self._model_label(model, status)
        if len(self.all) >= MAX_ACCOUNTS and (key, model) not in self.all:
            key = model = OTHER
        if key != OTHER:
            self._keys.add(key)
        return self.all.setdefault((key, model), Account())

    def _model_label(self, name: str, status: int) -> str:
        label = name[:LABEL_LENGTH]
        if label in self._models:
            return label
        if len(self._models) >= MAX_LABELS:
            return OTHER
        if not self._is_listed(name):
            if status >= 400 or len(self._unlisted) >= MAX_UNLISTED or not self._may_be_model():
                return OTHER
            self._unlisted.add(label)
        self._models.add(label)
        return label
