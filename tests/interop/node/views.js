// Sends to compacted topics and tells what is seen of them; tests/interop/compacted_by_clients.py starts it and tells what its lines mean.
'use strict';

const path = require('path');
const readline = require('readline');
const Pulsar = require('pulsar-client');

const PATIENCE_MS = 30000;
const CODECS = { LZ4: 'LZ4', ZLIB: 'Zlib', ZSTD: 'ZSTD', SNAPPY: 'SNAPPY' };

const [serviceUrl, folder] = process.argv.slice(2);
const publicKeyPath = path.join(folder, 'public.pem');
const privateKeyPath = path.join(folder, 'private.pem');
const hex = (id) => id.serialize().toString('hex');
const idOf = (word) => Pulsar.MessageId.deserialize(Buffer.from(word, 'hex'));
const placeOf = (id) => { // its text is (ledger,entry,partition,index); -1 is the index of what is in no batch
  const [ledger, entry, , index] = id.toString().slice(1, -1).split(',');
  return `${ledger}:${entry}:${Math.max(index, 0)}`;
};
const told = (message) => `${message.getPartitionKey()}=${message.getData()}=${hex(message.getMessageId())}`;

const actions = {
  async send(client, topic, codec, kind, ...pairs) {
    const options = {
      topic,
      batchingEnabled: kind.endsWith('batch'),
      batchingMaxMessages: 1000,
      batchingMaxPublishDelayMs: 60000,
    };
    if (CODECS[codec]) options.compressionType = CODECS[codec];
    if (kind.startsWith('sealed')) Object.assign(options, { publicKeyPath, privateKeyPath, encryptionKey: 'k' });
    const producer = await client.createProducer(options);
    const receipts = pairs.map((pair) => {
      const at = pair.indexOf('=');
      return producer.send({ data: Buffer.from(pair.slice(at + 1)), partitionKey: pair.slice(0, at) || undefined });
    });
    await producer.flush();
    const ids = await Promise.all(receipts);
    await producer.close();
    return ids.map(hex);
  },

  /** What a reader gets from the start, or after a seek. */
  async view(client, topic, seek) {
    const startMessageId = seek ? Pulsar.MessageId.latest() : Pulsar.MessageId.earliest();
    const reader = await client.createReader({ topic, startMessageId, readCompacted: true, privateKeyPath });
    if (seek) await reader.seek(idOf(seek));
    const found = [];
    while (reader.hasNext()) found.push(told(await reader.readNext(PATIENCE_MS)));
    await reader.close();
    return found;
  },

  /** What a durable subscription gets up to a message. It may be set to a time, and acknowledges up to a message. */
  async consume(client, topic, subscription, until, millis, acked) {
    const consumer = await client.subscribe({
      topic,
      subscription,
      subscriptionType: 'Failover',
      subscriptionInitialPosition: 'Earliest',
      readCompacted: true,
      privateKeyPath,
    });
    if (Number(millis)) await consumer.seekTimestamp(Number(millis));
    const found = [];
    for (;;) {
      const message = await consumer.receive(PATIENCE_MS);
      found.push(told(message));
      const place = placeOf(message.getMessageId());
      if (acked !== '-' && place === placeOf(idOf(acked))) await consumer.acknowledgeCumulative(message);
      if (place === placeOf(idOf(until))) break;
    }
    await consumer.close();
    return found;
  },
};

async function main() {
  Pulsar.Client.setLogHandler(() => {});
  const client = new Pulsar.Client({ serviceUrl });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [action, ...words] = line.split(' ');
    try {
      console.log(['ok', ...await actions[action](client, ...words)].join(' '));
    } catch (error) {
      console.log(`error ${String(error).replaceAll('\n', ' ')}`);
    }
  }
  await client.close();
}

main();
