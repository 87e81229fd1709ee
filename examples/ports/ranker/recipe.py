"""A ranker of search results by LightGBM: one query is one user's."""

import lightgbm as lgb
import numpy as np
import pandas as pd
from sklearn.metrics import ndcg_score

import unlearning as ul

FEATURES = ["price", "rating", "age_days", "title_match", "seen_before"]


def groups(searches: pd.DataFrame) -> list[int]:
    return searches.groupby("query_id", sort=False).size().tolist()


def recipe(rows: ul.Rows = ul.table("searches.csv", person="user_id", aside=0.2)) -> ul.Published:
    searches = rows.pandas().sort_values("query_id", kind="stable")
    queries = searches.query_id.unique()
    np.random.default_rng(0).shuffle(queries)
    valid_queries = set(queries[: len(queries) // 5])
    is_valid = searches.query_id.isin(valid_queries)
    train, valid = searches[~is_valid], searches[is_valid]

    ranker = lgb.LGBMRanker(
        objective="lambdarank",
        n_estimators=200,
        learning_rate=0.05,
        num_leaves=15,
        subsample=0.8,
        subsample_freq=1,
        random_state=0,
    )
    ranker.fit(
        train[FEATURES],
        train.relevance,
        group=groups(train),
        eval_set=[(valid[FEATURES], valid.relevance)],
        eval_group=[groups(valid)],
        eval_at=[5],
        callbacks=[lgb.early_stopping(20), lgb.log_evaluation(20)],
    )

    def score(apart: ul.Rows) -> float:
        found = [
            ndcg_score([query.relevance], [ranker.predict(query[FEATURES])], k=5)
            for _, query in apart.pandas().groupby("query_id")
        ]
        return float(np.mean(found))

    return ul.Published({"ranker.txt": ranker.booster_.model_to_string()}, score=score)
