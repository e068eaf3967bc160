"""Run the tests beside this file and print "N passed, N failed"; exit status 1 when one failed or none ran."""
import os
import sys
import unittest

import diffusers
import transformers

here = os.path.dirname(os.path.abspath(__file__))
os.chdir(os.environ["ROOT"])
transformers.logging.set_verbosity_error()
diffusers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
loader = unittest.TestLoader()
names = sys.argv[1:]
suite = loader.loadTestsFromNames(names) if names else loader.discover(here, "test_*.py")
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1 if not names else 2).run(suite)
bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
for test, why in result.skipped:
    print(f"skipped: {test.id()}: {why}")
print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
sys.exit(1 if bad or not result.testsRun else 0)
