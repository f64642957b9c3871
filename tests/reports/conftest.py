from tests.evaluation.conftest import drawn  # noqa: F401 - a fixture of pictures
