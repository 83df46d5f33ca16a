"""TensorBoard: one event file, written with tensorboard's own record writer; neither TensorFlow nor torch is needed."""

from pathlib import Path
from typing import Any

from orchestrator.export.packages import need
from orchestrator.queries.scalars import RunScalars


class TensorBoard:
    """`events.out.tfevents.<when the run started>.<run>`: train/… over train steps, eval/… over policy versions."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._event = need("tensorboard.compat.proto.event_pb2", "tensorboard", self.name)
        self._summary = need("tensorboard.compat.proto.summary_pb2", "tensorboard", self.name)
        self._record = need("tensorboard.summary.writer.record_writer", "tensorboard", self.name)

    def write(self, directory: Path, scalars: RunScalars) -> list[str]:
        started = scalars.created.timestamp()
        name = f"events.out.tfevents.{int(started)}.{scalars.run}"
        with (directory / name).open("wb") as file:
            writer = self._record.RecordWriter(file)
            writer.write(
                self._event.Event(wall_time=started, file_version="brain.Event:2").SerializeToString()
            )
            for row in scalars.rows:
                summary: Any = self._summary.Summary(
                    value=[
                        self._summary.Summary.Value(tag=tag, simple_value=value)
                        for tag, value in row.values.items()
                    ]
                )
                event = self._event.Event(wall_time=row.at.timestamp(), step=row.step, summary=summary)
                writer.write(event.SerializeToString())
        return [name]
