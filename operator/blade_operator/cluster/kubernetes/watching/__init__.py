"""The watching of Kubernetes: kopf lists and watches, a supervisor reruns it, a sweep corrects what it missed."""
