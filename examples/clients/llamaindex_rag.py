"""LlamaIndex: answers from documents. A reader reads a folder, this server turns each of its lines into a vector, an
index in memory finds the lines that are nearest to a question, and this server answers with them at hand."""

from __future__ import annotations

import tempfile

from documents import QUESTIONS, write
from llama_index.core import Document, SimpleDirectoryReader, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SimpleNodeParser
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llamaindex_chat import llm
from server import API_KEY, BASE_URL, model

PROMPT = ChatPromptTemplate(
    [ChatMessage("Answer from this:\n{context_str}", role="system"), ChatMessage("{query_str}", role="user")]
)


def load() -> list[Document]:
    """The lines of a folder's documents, each with the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        files = SimpleDirectoryReader(folder).load_data()
    return [
        Document(text=line, metadata={"file": file.metadata["file_name"]}, excluded_embed_metadata_keys=["file"])
        for file in files
        for line in file.text.splitlines()
        if line
    ]


def main() -> None:
    """Ask about functions that the documents describe."""
    vectors = OpenAILikeEmbedding(model_name=model(), api_base=BASE_URL, api_key=API_KEY)
    index = VectorStoreIndex.from_documents(load(), embed_model=vectors, transformations=[SimpleNodeParser()])
    engine = index.as_query_engine(llm=llm(is_chat_model=True), similarity_top_k=2, text_qa_template=PROMPT)
    for question in QUESTIONS:
        answer = engine.query(question)
        print("nearest ", answer.source_nodes[0].text, answer.source_nodes[0].metadata["file"])
        print("answer  ", answer)


if __name__ == "__main__":
    main()
