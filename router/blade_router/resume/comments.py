"""Comments in an event stream (the HTML standard, section 9.2.6): lines that begin with a colon, and mean nothing."""


def num_comments(events: bytes) -> int:
    """How many of these whole events are only comments. Of those that end in CR LF none count, as among events."""
    if not events.startswith(b":") and b"\n\n:" not in events:
        return 0
    count = 0
    for event in events.split(b"\n\n")[:-1]:
        if event.startswith(b":") and all(line.startswith(b":") for line in event.split(b"\n")):
            count += 1
    return count


def without_comments(events: bytes) -> bytes:
    """``events`` without the comments before the first line that is none."""
    while events.startswith(b":"):
        events = events.partition(b"\n")[2].lstrip(b"\r\n")
    return events
