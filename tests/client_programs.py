"""Programs of users, each with the client of another project as it comes.

Each gets the address of a server, and a file with a JSON list of images as data URLs. It prints a JSON list of
vectors: that of the first image alone, then those of all.
"""

_START = """
import json, sys
url, texts = sys.argv[1], json.load(open(sys.argv[2]))
show = lambda first, rows: print(json.dumps([list(first), *map(list, rows)]))
"""

PYTHON = {
    "langchain_openai": """
from langchain_openai import OpenAIEmbeddings
client = OpenAIEmbeddings(model="default", base_url=url + "/v1", api_key="none", check_embedding_ctx_length=False)
show(client.embed_query(texts[0]), client.embed_documents(texts))
""",
    "llama_index.embeddings.openai": """
from llama_index.embeddings.openai import OpenAIEmbedding
client = OpenAIEmbedding(model_name="default", api_base=url + "/v1", api_key="none")
show(client.get_text_embedding(texts[0]), client.get_text_embedding_batch(texts))
""",
    "litellm": """
import litellm
embed = lambda images: [row["embedding"] for row in litellm.embedding(
    model="openai/default", input=images, api_base=url + "/v1", api_key="none").data]
show(embed([texts[0]])[0], embed(texts))
""",
    "haystack": """
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
options = {"model": "default", "api_base_url": url + "/v1", "api_key": Secret.from_token("none")}
first = OpenAITextEmbedder(**options).run(text=texts[0])["embedding"]
output = OpenAIDocumentEmbedder(**options, progress_bar=False).run([Document(content=text) for text in texts])
show(first, [document.embedding for document in output["documents"]])
""",
    "requests": """
import base64, requests
session = requests.Session()
def embed(images):
    files = [("files", ("фото.jpg", base64.b64decode(text.partition(",")[2]), "image/jpeg")) for text in images]
    answer = session.post(url + "/api/v1/embed", files=files)
    answer.raise_for_status()
    return [row["embedding"] for row in answer.json()["data"]]
show(embed(texts[:1])[0], embed(texts))
""",
}
PYTHON = {name: _START + program for name, program in PYTHON.items()}

# Its tokenizer is a download; one token per byte replaces it. Prints what the refusal says.
LANGCHAIN_DEFAULTS = f"""{_START}
import openai, tiktoken, tiktoken.registry
from langchain_openai import OpenAIEmbeddings
tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
    "cl100k_base", pat_str=r"[\\s\\S]", mergeable_ranks={{bytes([i]): i for i in range(256)}}, special_tokens={{}})
client = OpenAIEmbeddings(model="default", base_url=url + "/v1", api_key="none")
for call in (lambda: client.embed_query(texts[0]), lambda: client.embed_documents(texts)):
    try:
        call()
    except openai.BadRequestError as error:
        print(json.dumps([error.code, error.param, error.message]))
"""

JAVASCRIPT = """
const OpenAI = require("openai");
const texts = JSON.parse(require("fs").readFileSync(process.argv[3]));
const client = new OpenAI({baseURL: process.argv[2] + "/v1", apiKey: "none"});
const create = (input) => client.embeddings.create({model: "default", input});
const embed = async (input) => (await create(input)).data.map((one) => one.embedding);
(async () => console.log(JSON.stringify([(await embed(texts[0]))[0], ...(await embed(texts))])))();
"""

# its client offers h2c with each request, as by default
JAVA = """
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;

public class Embed {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        String texts = Files.readString(Path.of(arguments[1])).strip();
        String first = texts.substring(1, texts.indexOf('"', 2) + 1);
        String one = embed(client, arguments[0], "[" + first + "]");
        System.out.println("[" + one + "," + embed(client, arguments[0], texts) + "]");
    }

    static String embed(HttpClient client, String url, String input) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/v1/embeddings"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString("{\\"model\\": \\"default\\", \\"input\\": " + input + "}"))
            .build();
        HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) throw new RuntimeException(answer.statusCode() + answer.body());
        return answer.body();
    }
}
"""
