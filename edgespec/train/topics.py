"""What prompts without a passage are about: subjects, names, and templates by task, in several languages."""

from __future__ import annotations

import functools
import unicodedata
import zoneinfo

SUBJECTS = (
    """
photosynthesis|black holes|the French Revolution|supply and demand|vaccines|volcanoes|machine learning|the water cycle
recursion|classical music|the Roman Empire|plate tectonics|compound interest|democracy|DNA|the human heart
renewable energy
chess openings|jazz|the Silk Road|antibiotics|electric cars|the Great Depression|coral reefs|cryptography|meditation
the immune system|public speaking|the industrial revolution|gravity|sleep|time management|ancient Egypt|blockchain
stoicism|impressionism|the Cold War|inflation|bees|solar panels|the stock market|yoga|Shakespeare|probability|glaciers
the printing press|operating systems|human rights|nutrition|the periodic table|evolution|relativity|urban planning
sorting algorithms|databases|haiku|bread baking|coffee|marathon training|gardening|photography|first aid|job interviews
negotiation|remote work|climate change|space travel|artificial satellites|the Renaissance|tides|earthquakes
semiconductors
nuclear fusion|genetics|insurance|taxes|migration of birds|whales|rainforests|deserts|bridges|skyscrapers|railways
the internet|search engines|video games|board games|poetry|mythology|world religions|linguistics|grammar
learning a language
study habits|parenting|friendship|leadership|teamwork|customer service|marketing|small businesses|startups|charity
recycling|water treatment|batteries|robots|drones|3D printing|telescopes|microscopes|thermodynamics|acids and bases
statistics|calculus|prime numbers|geometry|logic puzzles|game theory|ethics|free will|memory|emotions|dreams
body language
the Olympic Games|football|tennis|swimming|mountain climbing|camping|road trips|museums|theatre|film making|fashion
architecture
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

NAMES = (
    "Anna", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Kira",
    "Leo", "Maya", "Noah", "Olga", "Priya", "Quentin", "Rosa", "Samir", "Tara", "Uma", "Victor",
    "Wendy", "Yusuf", "Zoe",
)  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a friendly teacher who explains things step by step.",
    "You are an expert. Be precise and give examples.",
    "Answer in one paragraph.",
    "You are a careful editor.",
    "Reply in Markdown.",
    "You are a software engineer. Prefer code to words.",
    "Use simple words that a child understands.",
)

CHAT = (
    "Explain {t} to a beginner.", "Write a short story about {t}.", "Write a poem about {t} and {u}.",
    "What are the advantages and disadvantages of {t}?", "Give me five ideas for a blog post about {t}.",
    "Write an email to {n} about {t}. Keep it polite.", "How are {t} and {u} related?", "Compare {t} with {u}.",
    "List ten facts about {t}.", "Write a dialogue between {n} and {m} about {t}.", "Plan a weekend around {t}.",
    "Imagine you are {n}, who loves {t}. Introduce yourself.", "Write a product description for {t}.",
    "Make a table that compares {t} and {u}: name, use, cost, risk.", "Write a speech about {t} for a school event.",
    "Give step-by-step instructions to get started with {t}.", "What would happen if {t} did not exist?",
    "Describe {t} as JSON with the keys name, summary, uses and examples.", "Write a review of a book about {t}.",
    "Write three multiple choice questions about {t}, with answers.", "Convince me that {t} matters more than {u}.",
    "Summarize the history of {t} in about 100 words.", "What do people often get wrong about {t}?",
    "Write an outline for an essay on {t} and its effect on {u}.", "Act as an interviewer and ask me about {t}.",
    "Rewrite this in a formal tone: I really like {t}, but {u} is just too much for me.",
)  # fmt: skip
QUESTIONS = (
    "What is {t}?", "Who discovered {t}?", "When did people first learn about {t}?", "Where is {p} located?",
    "What is the capital of {c}?", "What language do people speak in {c}?", "Why is {t} important?",
    "How does {t} work?",
    "How many people live in {c}?", "What is {p} famous for?", "Who was the first person to write about {t}?",
    "What are the main parts of {t}?", "What is the difference between {t} and {u}?", "What is the currency of {c}?",
    "which country is {p} in", "who invented {t}", "when was {p} founded", "what does {t} mean",
    "name three kinds of {t}",
    "Is {t} older than {u}?", "What is the climate of {c} like?", "Which countries border {c}?",
)  # fmt: skip
MATHS = (
    "{n} has {a} {t} and buys {b} more every week. How many does {n} have after {d} weeks?",
    "A shop sells {t} for ${b} each. {n} buys {d} and pays with ${a}00. How much change does {n} get?",
    "{n} reads {b} pages a day. How many days does a book of {a}0 pages take?",
    "A train travels at {a} km/h for {d} hours and then at {b} km/h for {e} hours. How far does it go?",
    "{n} and {m} share {a} {t}. {n} gets {b} more than {m}. How many does each get?",
    "What is {a} * {b} + {d}?", "Solve for x: {b}x + {d} = {a}.", "What is {b} percent of {a}0?",
    "A rectangle is {a} cm long and {b} cm wide. What are its area and perimeter?",
    "{n} earns ${b} an hour and works {d} hours a day, {e} days a week. How much does {n} earn in {d} weeks?",
    "The sum of two numbers is {a} and their difference is {b}. What are the numbers?",
    "{n} is {d} times as old as {m}. In {e} years {n} will be {a}. How old is {m} now?",
    "A tank holds {a}0 liters. It is filled at {b} liters a minute and leaks {d} liters a minute. When is it full?",
    "{n} bakes {a} cookies, gives away a third, eats {d}, and packs the rest in bags of {e}. How many bags are there?",
)  # fmt: skip
CODE = (
    "Write a Python function that takes a list of {t} and returns the {e} largest by weight.",
    "Write a {l} program that reads a file line by line and counts the words.", "How do I reverse a string in {l}?",
    "Write a {l} class for {t} with a name, a price and a method that prints both.",
    "Write a SQL query that lists all {t} that cost more than {a}.",
    "Write unit tests for a function that adds {t} to a cart.",
    "Write a shell script that renames all .txt files in a folder.",
    "Explain what a {l} exception is, with an example.",
    "Write a {l} function that checks whether a number is prime.", "Write a regular expression that matches dates.",
    "Write an HTML page about {t} with a table and a list.", "Write a {l} function for binary search and explain it.",
)  # fmt: skip
CODE_LANGUAGES = ("Python", "JavaScript", "C", "Java", "Rust", "Go", "C++")
FOREIGN = {
    "de": ("Erkläre {t} in einfachen Worten.", "Schreibe eine kurze Geschichte über {t}.", "Was ist {t}?"),
    "fr": ("Explique {t} en quelques phrases.", "Écris une courte histoire sur {t}.", "Qu'est-ce que {t} ?"),
    "es": ("Explica {t} con palabras sencillas.", "Escribe un cuento corto sobre {t}.", "¿Qué es {t}?"),
    "it": ("Spiega {t} in parole semplici.", "Scrivi una breve storia su {t}."),
    "pt": ("Explique {t} em poucas frases.", "Escreva uma história curta sobre {t}."),
}

ON_PROSE = {
    "summary": (
        "Summarize the following text:\n\n{x}", "Summarize: {x}", "{x}\n\nTL;DR", "Write a headline for this:\n\n{x}",
        "List the key points of this text as bullet points:\n\n{x}", "Summarise this in one sentence.\n\n{x}",
    ),
    "rag": (
        "{x}\n\nBased on the text above, what is it about, and who is it for?",
        "Read the passage and answer with an explanation.\n\n{x}\n\nQuestion: what is the main purpose described?",
        "Context:\n{x}\n\nQuestion: {q}\nAnswer:",
        "Use the documents to answer.\n\nDocument 1: {x}\n\nDocument 2: {y}\n\n"
        "Question: {q}", "Write three questions that this text answers, with the answers.\n\n{x}",
    ),
    "chat": (
        "Rewrite this so that it is easier to read:\n\n{x}", "Continue this text:\n\n{x}",
        "Turn this into a list:\n\n{x}",
        "Explain this to a ten-year-old:\n\n{x}", "Make JSON of the facts in this text:\n\n{x}",
        "Correct the grammar and style of this text:\n\n{x}", "Write an email that tells {n} about this:\n\n{x}",
    ),
    "translation": ("Translate to German: {x}", "Translate into French:\n{x}", "Translate this into Spanish: {x}"),
}  # fmt: skip
ABOUT = ("What does the text say about this?", "Which steps are described?", "What should be avoided?",
    "Why is it done?",
         "What are the exceptions?", "What happens by default?")  # fmt: skip
ON_CODE = (
    "Explain what this code does:\n\n```python\n{x}\n```", "Write a docstring for this:\n\n{x}",
    "Rewrite this code with clearer names:\n\n```python\n{x}\n```", "Find possible bugs in this code:\n\n{x}",
    "Write unit tests for this function:\n\n```python\n{x}\n```", "Add comments to this code:\n\n{x}",
    "Translate this Python code to JavaScript:\n\n```python\n{x}\n```", "Add type hints:\n\n{x}",
)  # fmt: skip
ON_FOREIGN = (
    "Translate {l} to English: {x}", "Translate the following {l} text into English.\n\n{x}",
    "What does this mean?\n\n{x}",
    "Summarize this {l} text in English:\n\n{x}",
)  # fmt: skip
LANGUAGES = {
    "cs": "Czech", "da": "Danish", "de": "German", "es": "Spanish", "fi": "Finnish", "fr": "French", "hu": "Hungarian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip
FOLLOW_UPS = (
    "Can you give an example?", "Make it shorter.", "Now explain it to a child.", "Why?", "Rewrite it as a list.",
    "What else should I know about {t}?", "Translate your answer into French.", "Add more detail to the last point.",
    "Rewrite your previous response in a funny tone.", "How does this compare with {t}?", "Thanks! And what about {u}?",
    "Write the same about {u}.", "Put it into a table.", "What are the arguments against this?",
)  # fmt: skip
OPENINGS = ("", "", "", "Write", "How", "What", "Can you", "Explain", "I", "Create", "Why", "Give me", "Who",
    "Describe",
            "Please", "When", "Is", "Translate", "Tell me", "Calculate", "In", "The")  # fmt: skip
"""How questions begin that the model is left to write itself; mostly not at all."""


@functools.cache
def things() -> tuple[str, ...]:
    """Names of animals, plants, food, tools and the like: those of Unicode's pictographs."""
    ranges = ((0x1F300, 0x1F6FF), (0x1F900, 0x1FAFF))
    names = (unicodedata.name(chr(code), "") for first, last in ranges for code in range(first, last))
    dull = ("SYMBOL", "SIGN", "FACE", "ARROW", "EMOJI", "KEYCAP", "CLOCK", "WITH", "INPUT", "SQUARE", "MODIFIER")
    return tuple(name.lower() for name in names if name and not any(word in name for word in dull))


@functools.cache
def places() -> tuple[str, ...]:
    """Cities, by the names of time zones."""
    zones = sorted(zone for zone in zoneinfo.available_timezones() if zone.count("/") and not zone.startswith("Etc/"))
    return tuple(zone.rpartition("/")[2].replace("_", " ") for zone in zones) or ("Paris", "Tokyo", "Nairobi")


COUNTRIES = """Argentina|Australia|Austria|Bangladesh|Belgium|Bolivia|Brazil|Bulgaria|Cambodia|Cameroon|Canada
Chile|China
Colombia|Cuba|Denmark|Ecuador|Egypt|Ethiopia|Finland|France|Germany|Ghana|Greece|Hungary|Iceland|India|Indonesia
Iran|Iraq
Ireland|Israel|Italy|Japan|Jordan|Kenya|Laos|Latvia|Lebanon|Madagascar|Malaysia|Mali|Mexico|Mongolia|Morocco|Nepal
New Zealand|Nigeria|Norway|Pakistan|Peru|Poland|Portugal|Romania|Russia|Senegal|Serbia|Spain|Sri Lanka|Sweden
Switzerland
Thailand|Tunisia|Turkey|Uganda|Ukraine|Uruguay|Uzbekistan|Vietnam|Yemen|Zambia""".replace("\n", "|").split("|")
