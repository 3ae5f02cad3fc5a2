"""Steps that all text-generating routes share: from request fields to engine requests, from outputs to responses."""
