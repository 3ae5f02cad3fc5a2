"""What a model is, as frozen records without torch: norms, positions, attention, MLP, layers, and where a checkpoint
has their tensors. A family (:mod:`blade_llm.models.families`) fills them in; layers and the loader read them."""
