// The load of `warpfire-bench meta` on RocksDB: the same keys and values in the same order, committed in the
// same batches with the write-ahead log on, one sync at the end, then random gets and one scan.
//
// usage: rocksdb-load --version
//        rocksdb-load DIRECTORY RECORDS VALUE_BYTES BATCH THREADS random|in-order CACHE_BYTES
//
// Prints one line for each phase:
//   phase operations wall_nanos cpu_nanos written_bytes peak_bytes stored_bytes

#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#ifndef ASSERTIONS
#define ASSERTIONS ""
#endif

namespace {

// The default of Warpfire's metadata engine.
constexpr size_t kMemtableBytes = 64u << 20;
constexpr int kKeyBytes = 24;
constexpr int kFilterBitsPerKey = 10;

struct Load {
  uint64_t records;
  size_t value_bytes;
  uint64_t batch;
  uint64_t threads;
  bool in_order;
};

void Check(const rocksdb::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "rocksdb-load: %s\n", status.ToString().c_str());
    std::exit(1);
  }
}

void KeyOf(uint64_t n, bool in_order, char key[kKeyBytes]) {
  uint64_t rest = in_order ? n : __builtin_bswap64(n * 0x9e3779b97f4a7c15ull) ^ 0x5bd1;
  std::memcpy(key, "key-", 4);
  for (int at = kKeyBytes - 1; at >= 4; --at) {
    key[at] = static_cast<char>('0' + rest % 10);
    rest /= 10;
  }
}

// Half of a value repeats and half is noise, as in `warpfire-bench meta`.
void ValueOf(uint64_t n, std::string* value) {
  uint64_t noise = n;
  for (size_t at = 0; at < value->size(); at += 16) {
    noise = noise * 0x5851f42d4c957f2dull + 1;
    std::memcpy(&(*value)[at], &noise, std::min<size_t>(value->size() - at, 8));
  }
}

uint64_t WallNanos() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

uint64_t CpuNanos() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

// The number after `word`, which begins a line of a file of /proc. 0 if no line has it.
uint64_t ProcNumber(const char* path, const std::string& word) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, word.size(), word) == 0) return std::strtoull(line.c_str() + word.size(), nullptr, 10);
  }
  return 0;
}

void Phase(rocksdb::DB* db, const char* name, const std::function<uint64_t()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const uint64_t written = ProcNumber("/proc/self/io", "write_bytes:");
  const uint64_t wall = WallNanos(), cpu = CpuNanos();
  const uint64_t operations = work();
  const uint64_t wall_spent = WallNanos() - wall, cpu_spent = CpuNanos() - cpu;
  uint64_t stored = 0;
  db->GetIntProperty("rocksdb.live-sst-files-size", &stored);
  std::printf("%s %llu %llu %llu %llu %llu %llu\n", name, static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(wall_spent), static_cast<unsigned long long>(cpu_spent),
              static_cast<unsigned long long>(ProcNumber("/proc/self/io", "write_bytes:") - written),
              static_cast<unsigned long long>(ProcNumber("/proc/self/status", "VmHWM:") * 1024),
              static_cast<unsigned long long>(stored));
}

void InsertShare(rocksdb::DB* db, const Load& load, uint64_t thread) {
  const uint64_t share = load.records / load.threads;
  rocksdb::WriteBatch batch;
  std::string value(load.value_bytes, 'v');
  char key[kKeyBytes];
  for (uint64_t n = thread * share; n < (thread + 1) * share; ++n) {
    ValueOf(n, &value);
    KeyOf(n, load.in_order, key);
    Check(batch.Put(rocksdb::Slice(key, kKeyBytes), value));
    if (static_cast<uint64_t>(batch.Count()) == load.batch || n + 1 == (thread + 1) * share) {
      Check(db->Write(rocksdb::WriteOptions(), &batch));
      batch.Clear();
    }
  }
}

uint64_t Insert(rocksdb::DB* db, const Load& load) {
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t < load.threads; ++t) threads.emplace_back(InsertShare, db, std::cref(load), t);
  InsertShare(db, load, 0);
  for (auto& thread : threads) thread.join();
  Check(db->SyncWAL());
  return load.records;
}

uint64_t Get(rocksdb::DB* db, const Load& load) {
  const uint64_t inserted = load.records / load.threads * load.threads;
  rocksdb::PinnableSlice value;
  char key[kKeyBytes];
  for (uint64_t i = 0; i < load.records; ++i) {
    KeyOf(i * 0x9e3779b97f4a7c15ull % inserted, load.in_order, key);
    value.Reset();
    Check(db->Get(rocksdb::ReadOptions(), db->DefaultColumnFamily(), rocksdb::Slice(key, kKeyBytes), &value));
  }
  return load.records;
}

uint64_t Scan(rocksdb::DB* db) {
  std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions()));
  uint64_t count = 0, bytes = 0;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    bytes += it->key().size() + it->value().size();
    ++count;
  }
  Check(it->status());
  return bytes == 0 ? 0 : count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--version") {
    std::printf("%d.%d.%d%s\n", ROCKSDB_MAJOR, ROCKSDB_MINOR, ROCKSDB_PATCH, ASSERTIONS);
    return 0;
  }
  if (argc != 8) {
    std::fprintf(stderr, "usage: rocksdb-load DIRECTORY RECORDS VALUE_BYTES BATCH THREADS random|in-order CACHE_BYTES\n");
    return 2;
  }
  const Load load{std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10),
                  std::strtoull(argv[4], nullptr, 10), std::strtoull(argv[5], nullptr, 10),
                  std::string(argv[6]) == "in-order"};
  rocksdb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  options.write_buffer_size = kMemtableBytes;
  options.compression = rocksdb::kSnappyCompression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(std::strtoull(argv[7], nullptr, 10));
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kFilterBitsPerKey));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* opened = nullptr;
  Check(rocksdb::DB::Open(options, argv[1], &opened));
  std::unique_ptr<rocksdb::DB> db(opened);
  Phase(db.get(), "insert", [&] { return Insert(db.get(), load); });
  Phase(db.get(), "get", [&] { return Get(db.get(), load); });
  Phase(db.get(), "scan", [&] { return Scan(db.get()); });
  return 0;
}
