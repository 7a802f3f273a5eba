"""What sites agree on: columns, model, method, rules; as values, as text, and what an honest site would make of it."""
