"""Train a ranker of search results: one query is one user's."""

from pathlib import Path

import lightgbm as lgb
import numpy as np
import pandas as pd

HERE = Path(__file__).parent
FEATURES = ["price", "rating", "age_days", "title_match", "seen_before"]


def load() -> pd.DataFrame:
    searches = pd.read_csv(HERE / "searches.csv")
    return searches.sort_values("query_id", kind="stable")


def groups(searches: pd.DataFrame) -> list[int]:
    return searches.groupby("query_id", sort=False).size().tolist()


def main() -> None:
    searches = load()
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
    print("ndcg@5:", ranker.best_score_["valid_0"]["ndcg@5"], "after", ranker.best_iteration_, "trees")
    ranker.booster_.save_model(HERE / "ranker.txt")


if __name__ == "__main__":
    main()
