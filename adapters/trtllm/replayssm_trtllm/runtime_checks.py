"""Refusals that a rank makes: before weights load, and before a cache is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from replayssm import LayerKind, UnsupportedError
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.kinds import geometry_of
from replayssm_trtllm.llm_checks import TRANSPORT, check_beams, check_environment, check_transport
from replayssm_trtllm.settings import text_config
from replayssm_trtllm.speculation import TREE_FIELDS
from replayssm_trtllm.state import tokens_of


def check_model(config: ReplaySSMConfig, kind: LayerKind, model_config: Any, tp: int) -> None:  # noqa: ANN401
    """Check this rank's environment, and a model's geometry and speculation against the configuration.

    Raises:
        InputError, UnsupportedError: the reason.
    """
    check_environment(os.environ, plugin=True)
    geometry_of(kind, text_config(model_config.pretrained_config), tp)
    spec_config = getattr(model_config, "spec_config", None)
    check_spec_config(spec_config)
    if spec_config is None and not config.decode:
        raise UnsupportedError("nothing to replay: no speculation and decode=False; set decode=True")
    config.resolved_window(tokens_of(spec_config))


def check_spec_config(spec_config: Any) -> None:  # noqa: ANN401  the engine's
    """Check that drafts are a chain.

    Raises:
        UnsupportedError: they may be a tree.
    """
    trees = [name for name in TREE_FIELDS if getattr(spec_config, name, None)]
    if trees or getattr(spec_config, "is_linear_tree", True) is False:
        name = trees[0] if trees else "is_linear_tree=False"
        raise UnsupportedError(f"speculative_config.{name} drafts a tree; draft a chain")


def check_manager_arguments(arguments: Mapping[str, Any]) -> None:
    """Check what a cache manager is made with.

    Raises:
        UnsupportedError: beam search, a connector, or draft trees.
    """
    check_beams(arguments.get("max_beam_width"))
    if arguments.get("kv_connector_manager") is not None:
        raise UnsupportedError("a KV connector moves attention blocks and neither state nor ring; use none")
    check_spec_config(arguments.get("spec_config"))


def check_disaggregation(is_disagg: bool, transceiver: Any) -> None:  # noqa: ANN401  the engine's
    """Check a disaggregated server's transport.

    Raises:
        UnsupportedError: not NIXL with the Python runtime.
    """
    if is_disagg:
        check_transport({name: getattr(transceiver, name, None) for name in TRANSPORT})
