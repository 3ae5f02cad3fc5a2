"""The adapters of an engine: names, files, host memory, and requests that wait for theirs."""

from blade_llm.engine.adapters.entry import LoadedAdapter as LoadedAdapter
from blade_llm.engine.adapters.files import AdapterReader as AdapterReader
from blade_llm.engine.adapters.manager import AdapterManager as AdapterManager
