"""LangChain: answers from documents. A loader of ``langchain_community`` reads a folder, this server turns each of its
lines into a vector, a store in memory finds the line that is nearest to a question, and this server answers with the
document of that line at hand."""

from __future__ import annotations

import tempfile

from documents import QUESTIONS, write
from langchain_chat import chat_model
from langchain_community.document_loaders import DirectoryLoader, TextLoader
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from server import API_KEY, BASE_URL, model

PROMPT = ChatPromptTemplate([("system", "Answer from this:\n{context}"), ("user", "{question}")])


def load() -> list[Document]:
    """The documents of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        return DirectoryLoader(folder, glob="*.txt", loader_cls=TextLoader).load()


def main() -> None:
    """Ask about functions that the documents describe."""
    documents = load()
    lines = [
        Document(line, metadata=document.metadata)
        for document in documents
        for line in document.page_content.splitlines()
        if line
    ]
    # Without the flag texts travel as the token ids of OpenAI's own tokenizer.
    vectors = OpenAIEmbeddings(base_url=BASE_URL, api_key=API_KEY, model=model(), check_embedding_ctx_length=False)  # type: ignore[arg-type]
    nearest = InMemoryVectorStore.from_documents(lines, vectors).as_retriever(search_kwargs={"k": 1})
    texts = {document.metadata["source"]: document.page_content for document in documents}

    def whole(found: list[Document]) -> str:
        return "\n\n".join(texts[line.metadata["source"]] for line in found)

    chain = {"context": nearest | whole, "question": RunnablePassthrough()} | PROMPT | chat_model() | StrOutputParser()
    for question in QUESTIONS:
        print("nearest ", nearest.invoke(question)[0].page_content)
        print("answer  ", "".join(chain.stream(question)))


if __name__ == "__main__":
    main()
