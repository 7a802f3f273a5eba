"""What the commands share: the application, options, the screen, and the work behind a command.

Nothing here that a command's file imports at its top may load torch: help and mistakes are answered at once.

- `app`: the application and its groups; `options` and `study_options`: options by type; `given`: what they say.
- `screen`: bars, tables and sentences; `handed`: files that people hand to each other.
- `listing`: methods and data sets, listed from a file; `catalogue`: the same in full, from the code.
- `run_plan`, `predictions`: the work of `run` and of `predict`.
"""
