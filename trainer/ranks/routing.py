"""The routing of a mixture of experts whose train step is spread over ranks: load and balance loss are those of all ranks together."""

import numpy as np
import torch

from trainer.ranks.meeting import Ranks
from trainer.routing import Routing


class SpreadRouting(Routing):
    """Counts this rank's passes like any other; `meet` once all of them are counted, and before any `loss`."""

    def meet(self, ranks: Ranks) -> None:
        """Make the load, f and the number of rows those of all ranks. A collective."""
        said = ranks.exchange(
            {
                "rows": self._rows,
                "load": None if self.load is None else self.load.tolist(),
                "assigned": None if self._assigned is None else self._assigned.tolist(),
            }
        )
        self._rows = sum(one["rows"] for one in said)
        loads = [one["load"] for one in said if one["load"] is not None]
        assigned = [one["assigned"] for one in said if one["assigned"] is not None]
        if loads:
            self.load = torch.from_numpy(np.sum(np.array(loads), 0))
        if assigned:
            self._assigned = torch.from_numpy(np.sum(np.array(assigned), 0)).to(ranks.device)
