"""Settings: read from the environment, checked, and overridden for a while."""

import threading

import pytest

from pdla import config


def test_override_is_undone():
    with pytest.raises(ZeroDivisionError), config.override(check=False, threads=7):
        assert (config.settings.check, config.settings.threads) == (False, 7)
        raise ZeroDivisionError
    assert config.settings.check and config.settings.threads != 7


def test_settings_are_read_from_the_environment():
    settings = config.read({"PDLA_CHECK": "0", "PDLA_TIMEOUT": "2.5", "PDLA_THREADS": "64"})
    assert settings == config.Settings(check=False, timeout=2.5, threads=64)
    assert config.read({}) == config.Settings()
    wrong = (
        ("THREADS", "x", "not a number"), ("THREADS", "-1", "negative"), ("TIMEOUT", "nan", "not a number"),
        ("CHECK", "2", "neither 0 nor 1"), ("SHARED", "-1", "neither 0 nor 1"), ("TF32", "yes", "neither 0 nor 1"),
    )
    for setting, value, message in wrong:
        with pytest.raises(ValueError, match=f"PDLA_{setting}='{value}' is {message}"):
            config.read({f"PDLA_{setting}": value})


def test_a_look_that_never_comes_is_a_rare_one():
    settings = config.read({"PDLA_PROGRESS": "inf", "PDLA_CROWDED": "inf"})
    assert settings.progress * settings.crowded < threading.TIMEOUT_MAX


def test_more_threads_than_blas_can_count_are_as_many_as_it_can():
    assert config.read({"PDLA_THREADS": "9" * 30}).threads == 2**31 - 1


def test_a_misspelt_variable_is_an_error():
    elsewhere = ("PDLA_PBLAS_REPORTS", "PBLAS_REPORT"), ("PDLA_SCALAPAK", "SCALAPACK")
    for given, meant in (("PDLA_THREAD", "THREADS"), ("PDLA_TIME_OUT", "TIMEOUT"), *elsewhere):
        with pytest.raises(ValueError, match=f"{given} is no variable of pdla: PDLA_{meant} is"):
            config.read({given: "1"})
    others = {"PDLA_HOME": "/opt", "PDLA_TEST_TIMEOUT": "5", "PDLA_PYTHON": "python3", "THREADS": "1", "pdla_thread": "1"}
    assert config.read(others) == config.Settings()


def test_a_word_that_is_none_of_a_settings_is_refused():
    assert config.read({"PDLA_GPU_MPI": "off"}).gpu_mpi == "off"
    with pytest.raises(ValueError, match="PDLA_GPU_MPI='tree': one of 'auto', 'on', 'off', 'nccl'"):
        config.read({"PDLA_GPU_MPI": "tree"})
    with pytest.raises(ValueError, match="did you mean 'nccl'"):
        config.read({"PDLA_GPU_MPI": "ncl"})
