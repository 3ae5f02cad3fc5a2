"""The automaton against a search through all suffixes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.decoding.suffix_automaton import SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(1, letters), max_size=60))


def longest_repeated_suffix(text: list[int]) -> int:
    """Tokens of the longest suffix that ends at another place, too."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        if any(text[end - length : end] == suffix for end in range(length, len(text))):
            return length
    return 0


@settings(max_examples=200)
@given(text=TEXTS)
def test_the_longest_repeated_suffix_is_followed(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, 1):
        automaton.append(token)
        seen = text[:count]
        length = automaton.match_length
        assert length == longest_repeated_suffix(seen)
        end = automaton.match_end
        assert end < count
        assert not length or seen[end - length : end] == seen[-length:]
    assert automaton.tokens == text


@settings(max_examples=200)
@given(text=TEXTS, query=st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_the_longest_suffix_of_a_query_is_found(text: list[int], query: list[int]) -> None:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    found = automaton.find(query)
    longest = 0
    for length in range(1, len(query) + 1):
        if any(text[end - length : end] == query[-length:] for end in range(length, len(text) + 1)):
            longest = length
    assert (found[0] if found else 0) == longest
    if found:
        length, end = found
        assert text[end - length : end] == query[-length:]


def test_states_grow_no_faster_than_the_text() -> None:
    """At most two states a token, as the theory has it: what bounds the memory of an index."""
    automaton = SuffixAutomaton()
    for index in range(2000):
        automaton.append(index * index % 7)
    assert len(automaton._edges) <= 2 * 2000
    assert sum(map(len, automaton._edges)) <= 3 * 2000
