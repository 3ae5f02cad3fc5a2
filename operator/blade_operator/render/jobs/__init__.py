"""Jobs that are made for people by command, not by the operator for a service."""

from blade_operator.render.jobs.quantize import Quantization, claim_folder, progress_access, quantize_job

__all__ = ["Quantization", "claim_folder", "progress_access", "quantize_job"]
