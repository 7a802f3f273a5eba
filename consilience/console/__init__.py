"""What the commands share: the application, options, the screen, and the work behind a command.

Nothing here that a command's file imports at its top may load torch: help and mistakes are answered at once.

- `app`: the application; `options`, `study_options`: options by type; `groups`: those that several commands take
  together; `given`: what was asked for.
- `screen`: bars, tables and sentences; `handed`: files that people hand to each other.
- `listing`: methods and data sets, listed from a file; `catalogue`: the same in full, from the code.
- `run_plan`, `predictions`, `prediction_sets`, `device_check`: the work of `run`, `predict` and `check-device`.
"""
