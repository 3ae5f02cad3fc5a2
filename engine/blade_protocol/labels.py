"""API group, kinds, labels and annotations of the objects the operator makes."""

from typing import Final

GROUP: Final = "serving.bladellm.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LLMService"
PLURAL: Final = "llmservices"
SINGULAR: Final = "llmservice"
SHORT_NAME: Final = "llm"

NAME: Final = f"{GROUP}/name"
"""Label: the LLMService an object belongs to."""
ROLE: Final = f"{GROUP}/role"
"""Label: ``engine`` or ``router``."""
REVISION: Final = f"{GROUP}/revision"
"""Label: the revision (hash of the rendered pod template) of an engine pod."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "bladellm"
HASH: Final = f"{GROUP}/hash"
"""Annotation: hash of the object as rendered; a difference means a write is due."""

ROLE_ENGINE: Final = "engine"
ROLE_ROUTER: Final = "router"
SPEC_HASH: Final = f"{GROUP}/spec-hash"
"""Annotation of a ControllerRevision: hash of the user's spec it was rendered for."""
RESTARTED_AT: Final = f"{GROUP}/restarted-at"
"""Annotation of an LLMService: a new value replaces every engine, like ``kubectl rollout restart``."""
