"""How people ask for what a function of `tools.py` answers; `{}` is what they ask about. Often asked stands twice."""

LOOKUPS = """
What does {} do? Look it up.
What is {}? Look it up.
Look up {}.
Look up {} in the documentation.
What does {} do?
What does {} do?
What is {}?
Please look up {}.
Look {} up, please.
What does the documentation say about {}?
Find {} in the documentation.
Explain {}.
Tell me about {}.
Can you look up what {} does?
Use the tool to look up {}.
How does {} work? Use the tool.
Search the documentation for {}.
What does {} do in Python?
Show me the documentation of {}.
Look up what {} does and tell me.
I need the documentation of {}.
""".strip().splitlines()

WEATHERS = """
What is the weather in {}?
What is the weather in {}?
What's the weather in {}?
How is the weather in {}?
What's the weather like in {}?
What is the weather like in {} today?
Weather in {}
Is it raining in {}?
Tell me the weather in {}.
Is it sunny in {}?
How warm is it in {}?
What is the temperature in {}?
What is the weather in {} right now?
Check the weather in {}.
Please get the weather for {}.
Give me the current weather in {}.
Do I need an umbrella in {}?
{} weather?
""".strip().splitlines()

SUMS = """
What is {} plus {}?
What is {} + {}?
Add {} and {}.
Add {} to {}.
How much is {} plus {}?
{} + {}
Calculate {} + {}.
What is the sum of {} and {}?
Compute {} plus {}.
Please add {} and {}.
{} plus {}?
What's {} + {}?
What is {}+{}?
Use the tool to add {} and {}.
""".strip().splitlines()
