//! redb: one file, copy-on-write B-trees.
use crate::Write;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const RECORDS: TableDefinition<u64, (&str, &[u8])> = TableDefinition::new("records");
const INDEX: TableDefinition<(&str, u64), u64> = TableDefinition::new("index");

pub struct Engine(Database);

impl Engine {
    pub fn open(path: &Path) -> Self {
        let db = redb::Builder::new().set_cache_size(cache_mib() << 20).create(path).unwrap();
        let txn = db.begin_write().unwrap();
        txn.open_table(RECORDS).unwrap();
        txn.open_table(INDEX).unwrap();
        txn.commit().unwrap();
        Engine(db)
    }
    pub fn commit(&self, batch: &[Write]) {
        let txn = self.0.begin_write().unwrap();
        {
            let mut records = txn.open_table(RECORDS).unwrap();
            let mut index = txn.open_table(INDEX).unwrap();
            for w in batch {
                let last = index
                    .range((w.key.as_str(), 0)..=(w.key.as_str(), u64::MAX))
                    .unwrap()
                    .next_back()
                    .map(|e| e.unwrap().1.value());
                records.insert(w.revision, (w.key.as_str(), w.value.as_slice())).unwrap();
                index.insert((w.key.as_str(), w.revision), last.unwrap_or(w.revision)).unwrap();
            }
        }
        txn.commit().unwrap();
    }
    pub fn list(&self, prefix: &str, limit: usize) -> usize {
        let txn = self.0.begin_read().unwrap();
        let (records, index) = (txn.open_table(RECORDS).unwrap(), txn.open_table(INDEX).unwrap());
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut last: Option<(String, u64)> = None;
        let mut emit = |key: Option<(String, u64)>| {
            if let Some((_, revision)) = key {
                found.push(records.get(revision).unwrap().unwrap().value().1.to_vec());
            }
            found.len() < limit
        };
        for entry in index.range((prefix, 0)..).unwrap() {
            let entry = entry.unwrap();
            let (key, revision) = entry.0.value();
            if !key.starts_with(prefix) {
                break;
            }
            match &mut last {
                Some((k, r)) if k == key => *r = revision,
                _ => {
                    let done = last.replace((key.to_string(), revision));
                    if !emit(done) {
                        last = None;
                        break;
                    }
                }
            }
        }
        emit(last);
        found.len()
    }
    pub fn drop_history(&self, below: u64) -> usize {
        let mut dropped = 0;
        let mut from = 0;
        loop {
            let txn = self.0.begin_write().unwrap();
            let mut seen = 0;
            {
                let mut records = txn.open_table(RECORDS).unwrap();
                let mut index = txn.open_table(INDEX).unwrap();
                let chunk: Vec<(u64, String)> = records
                    .range(from..below)
                    .unwrap()
                    .take(2000)
                    .map(|e| {
                        let e = e.unwrap();
                        (e.0.value(), e.1.value().0.to_string())
                    })
                    .collect();
                for (revision, key) in chunk {
                    seen += 1;
                    from = revision + 1;
                    if index
                        .range((key.as_str(), revision + 1)..=(key.as_str(), u64::MAX))
                        .unwrap()
                        .next()
                        .is_some()
                    {
                        index.remove((key.as_str(), revision)).unwrap();
                        records.remove(revision).unwrap();
                        dropped += 1;
                    }
                }
            }
            txn.commit().unwrap();
            if seen == 0 {
                return dropped;
            }
        }
    }
    pub fn give_back(&mut self) {
        self.0.compact().unwrap();
    }
}

fn cache_mib() -> usize {
    std::env::var("CACHE_MIB").ok().and_then(|v| v.parse().ok()).unwrap_or(8)
}
