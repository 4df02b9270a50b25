"""ALFWorld's engine in its own process and environment: JSON lines in and out.

Nothing of AtomMem is imported. Needs ``pip install alfworld "textworld[pddl]"``, without ALFWorld's
data. States, goals, planner and wording are the engine's; lists of possible commands are skipped.

- ``{"problem": PDDL, "plan": true}`` loads and resets; answers ``text``, ``won`` and ``plan``.
- ``{"command": "go to shelf 1"}`` takes a step; answers ``text`` and ``won``.
"""

import json
import os
import sys
from functools import lru_cache
from typing import Any


def _quick_engine() -> Any:
    """Return the engine's class, with the domain and grammar of ALFWorld."""
    import alfworld.info
    import fast_downward
    import textworld
    from alfworld.agents.utils.misc import Demangler
    from textworld.envs.pddl import logic, textgen
    from textworld.envs.pddl.pddl import PddlEnv

    with open(alfworld.info.ALFRED_PDDL_PATH) as file:
        domain = file.read()
    with open(alfworld.info.ALFRED_TWL2_PATH) as file:
        words = logic.GameLogic(domain=domain, grammar=file.read())
    fast_downward.pddl2sas = lru_cache(maxsize=512)(fast_downward.pddl2sas)
    parsed = lru_cache(maxsize=4096)(lambda text, rule: textgen._PARSER.parse(text, rule_name=rule))
    textgen._parse_and_convert = lambda text, rule_name, **_: textgen._Converter().walk(
        parsed(text, rule_name)
    )

    class Engine(PddlEnv):
        def load(self, problem: str) -> None:
            self._game_data = {"pddl_problem": problem}
            self._logic = words
            self._pddl_state = logic.PddlState(self.downward_lib, problem, words)
            self._entity_infos = self._get_entity_infos()
            names = Demangler(game_infos=self._entity_infos)
            for info in self._entity_infos.values():
                info.name = names.demangle_alfred_name(info.id).strip()

        def _gather_infos(self) -> None:
            self.state["won"], self.state["lost"] = self._pddl_state.check_goal(), False
            actions = list(self._pddl_state.all_applicable_actions())
            shown = {key: info.name for key, info in self._entity_infos.items()}
            self.state["_valid_actions"] = actions
            self.state["_valid_commands"] = [self._command(action, shown) for action in actions]

        def _command(self, action: Any, shown: Any) -> str:
            values = {place.name: shown[of.name] for place, of in action.mapping.items()}
            if action.name.lower() == "gotolocation":  # its template would ask the state
                return f"go to {values['r']}"
            return action.command_template.format(**values)

        def plan(self) -> Any:
            return list(self._pddl_state.replan(self._entity_infos))

    return Engine(textworld.EnvInfos(feedback=True, won=True))


def main() -> None:
    """Serve until the input ends. What the libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = _quick_engine()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "problem" in asked:
                engine.load(asked["problem"])
                state = engine.reset()
            else:
                state, _, _ = engine.step(asked["command"])
            found = {"text": state.feedback, "won": bool(state["won"])}
            if asked.get("plan"):
                found["plan"] = engine.plan()
        except Exception as error:  # the other process decides
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
