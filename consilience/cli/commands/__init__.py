"""The commands, a file a group; each is imported when somebody asks for it."""
