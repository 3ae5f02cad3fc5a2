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

TIMES = """
What time is it in {}?
What is the time in {}?
Tell me the time in {}.
What's the time in {}?
How late is it in {}?
Current time in {}?
Give me the local time in {}.
What time do they have in {}?
""".strip().splitlines()

CAPITALS = """
What is the capital of {}?
What's the capital of {}?
Tell me the capital of {}.
Capital of {}?
Which city is the capital of {}?
Name the capital of {}.
Look up the capital of {}.
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

PRODUCTS = """
What is {} times {}?
What is {} * {}?
Multiply {} by {}.
Multiply {} and {}.
How much is {} times {}?
Calculate {} * {}.
What is the product of {} and {}?
{} times {}?
{} * {}
What's {} x {}?
""".strip().splitlines()

NOWS = """
What time is it?
What is the time?
What time is it now?
What's the current time?
Tell me the time.
What is the time now?
How late is it?
""".strip().splitlines()
