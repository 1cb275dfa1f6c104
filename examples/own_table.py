"""Adapts a model of yours to a hospital's table. Paste it, and change what is marked HERE.

python own_table.py                            # a rehearsal: a hospital on this machine, some minutes
python own_table.py localhost:50051 client/    # the hospital: its address, and your credentials
"""

import contextlib
import sys

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd import Hospital, LocalHospital, adapt, plan_ladder

# HERE: your records (n, columns) in the hospital's columns and units, and their classes 0, 1, ...
records, labels = load_breast_cancer(return_X_y=True)
source = records[::2].astype(np.float32), labels[::2]

# HERE: a fitted classifier of scikit-learn, LightGBM or XGBoost, or a trained torch network
model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(*source)

with contextlib.ExitStack() as stack:
    if len(sys.argv) == 3:
        hospital = stack.enter_context(Hospital.connect(sys.argv[1], credentials=sys.argv[2]))
    else:  # HERE: what you believe a hospital sees; this one has labels, and measures tumours 20% larger
        theirs, known = 1.2 * records[1::2].astype(np.float32), labels[1::2].astype(np.int64)
        made = LocalHospital(theirs, labels=known, classes=2, epsilon=4.0, delta=1e-5)
        hospital = stack.enter_context(stack.enter_context(made).connect())
    print(hospital.describe())  # free, as is the plan
    print(plan_ladder(model, source, hospital, epsilon=2.0))
    adapted = adapt(model, source, hospital, epsilon=2.0)
    print(adapted)
    adapted.save("adapted.safetensors")  # for the hospital: `dpswd-curator apply adapted.safetensors`
