"""The layers that models are made of. Plain objects that own their tensors; a step's metadata is passed to each
call."""
