"""Objects on a known table from one image: where they stand, how large they are, and how sure that is.

image, camera, robot mask ─ DetectorNet: faces and votes per pixel ─ votes grouped ─> Detection
"""

from kinema4d_model.detection.detector import LearnedDetector, load_detector

__all__ = ["LearnedDetector", "load_detector"]
