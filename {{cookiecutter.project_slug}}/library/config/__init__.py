"""YAML sets and the command line as frozen dataclasses, or all mistakes at once."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.config.command_line import CommandLine, parse_command_line
    from library.config.hyperparameters import OptimizerHyperparameters, TrainingHyperparameters
    from library.config.options import PATHS, REQUIRED, URL, Location, Option, architecture
    from library.config.options import option, options_of, plain, word_of
    from library.config.parser import Parser, Resolved
    from library.config.sets import load
    from library.config.settings import FOLDS, PROJECT, SPLITS, DataSettings, RunSettings
    from library.config.settings import Settings
else:
    __getattr__ = lazy(__name__, __file__)
