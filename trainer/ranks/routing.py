"""The routing of a mixture of experts whose train step is spread over ranks: load and balance loss are those of all ranks together."""

import numpy as np
import torch

from trainer.ranks.process_group import Ranks
from trainer.tree.routing import Routing


class SpreadRouting(Routing):
    """Counts this rank's passes. Call `meet` after all of them are counted and before any `loss`."""

    def meet(self, ranks: Ranks) -> None:
        """Make the load, f and the number of rows those of all ranks. A collective."""
        reported = ranks.exchange(
            {
                "rows": self._rows,
                "load": None if self.load is None else self.load.tolist(),
                "assigned": None if self._assigned is None else self._assigned.tolist(),
            }
        )
        self._rows = sum(report["rows"] for report in reported)
        loads = [report["load"] for report in reported if report["load"] is not None]
        assigned = [report["assigned"] for report in reported if report["assigned"] is not None]
        if loads:
            self.load = torch.from_numpy(np.sum(np.array(loads), 0))
        if assigned:
            self._assigned = torch.from_numpy(np.sum(np.array(assigned), 0)).to(ranks.device)
