"""The entry point `sglang.srt.plugins`: SGLang calls `register` in every process before it parses arguments.

Light hooks first, the same in all processes. What replaces SGLang's parts follows in a scheduler process, once it is known
that ReplaySSM was asked for; its hooks are verified there, for SGLang logs and swallows what goes wrong with a hook.
"""

from __future__ import annotations

import argparse
import logging

from replayssm_sglang import arguments, launch, surface
from replayssm_sglang.calls import Foreign, Original

logger = logging.getLogger(__name__)


def register() -> None:
    """Put the flags on SGLang's parser and watch for a launch.

    Raises:
        SystemExit: ReplaySSM is asked for and this SGLang is not one that it can serve.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(surface.ADD_CLI_ARGS.path, launch.add_flags, HookType.AROUND)
    HookRegistry.register(surface.FROM_CLI_ARGS.path, take_flags, HookType.AROUND)
    HookRegistry.register(surface.CHECK_SERVER_ARGS.path, check_launch, HookType.AFTER)
    HookRegistry.register(surface.SCHEDULER_INIT.path, start_scheduler, HookType.BEFORE)
    if launch.active_config() is not None:
        require_surface()


def require_surface() -> None:
    """Refuse an SGLang that does not look as expected.

    Raises:
        SystemExit: it does not; the first difference.
    """
    ok, reason = surface.check()
    if not ok:
        releases = " or ".join(surface.RAN)
        launch.refuse(f"SGLang {surface.version()} is not served; install {releases}, or start without it: {reason}")


def take_flags(original: Original, cls: type, args: argparse.Namespace) -> Foreign:
    """Around `ServerArgs.from_cli_args`: what was asked for goes into the environment.

    Conflicts are refused before SGLang resolves its arguments, where it would stop with a reason of its own.
    """
    config = launch.requested(args)
    if config is not None:
        launch.publish(config)
        for reason in arguments.conflicts(args):
            launch.refuse(reason)
    return original(cls, args)


def check_launch(_result: None, server_args: Foreign) -> None:
    """After `ServerArgs.check_server_args`, in the process that the user started: refuse before anything is loaded."""
    if launch.active_config() is None:
        arguments.forget_dtype()
        return
    require_surface()
    arguments.check(server_args)


def start_scheduler(_scheduler: Foreign, server_args: Foreign, *_args: Foreign, **_kwargs: Foreign) -> None:
    """Before `Scheduler.__init__`: install everything, or end the process with the reason.

    Where SGLang alone was measured to be faster whatever this server does, nothing is installed, and the log says why.
    """
    config = launch.active_config()
    if config is None:
        return
    require_surface()
    from replayssm_sglang import install, measured

    view = surface.resolved(server_args)
    reason = measured.reason_to_stay_off(
        config,
        arguments.running_requests(view),
        arguments.draft_length(view),
        measured.device_name(),
        lambda: arguments.served_kind(server_args),
    )
    if reason is not None:
        logger.warning("replayssm: %s", reason)
        return
    install.install(config, server_args)
