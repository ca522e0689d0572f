"""A classifier of pictures as many were written between 2018 and 2023, for TensorFlow 2.15.

It is the example of docs/from_tensorflow_2.15.md, with the mistakes that such programs have:

python old_project.py --data_dir pictures --model_dir old_model
"""

import argparse
import os

import tensorflow as tf

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
tf.compat.v1.set_random_seed(1)

parser = argparse.ArgumentParser()
parser.add_argument("--data_dir", default="pictures")
parser.add_argument("--model_dir", default="/tmp/model")
parser.add_argument("--learning_rate", type=float, default=0.01)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--augment", type=bool, default=False)
FLAGS = parser.parse_args()

CLASSES = sorted(os.listdir(os.path.join(FLAGS.data_dir, "train")))
SIZE = 32
SHUFFLE_BUFFER = 100


def parse(filename, label):
    image = tf.io.decode_image(tf.io.read_file(filename), channels=3, expand_animations=False)
    image = tf.image.resize(image, [SIZE, SIZE]) / 255.0
    if FLAGS.augment:
        image = tf.image.random_flip_left_right(image)
    return {"image": image}, label


def input_fn(split, training):
    filenames, labels = [], []
    for label, name in enumerate(CLASSES):
        folder = os.path.join(FLAGS.data_dir, split, name)
        for filename in sorted(os.listdir(folder)):
            filenames.append(os.path.join(folder, filename))
            labels.append(label)
    dataset = tf.data.Dataset.from_tensor_slices((filenames, labels))
    if training:
        dataset = dataset.shuffle(len(filenames), seed=1, reshuffle_each_iteration=False)
    dataset = dataset.map(parse)
    if training:
        dataset = dataset.shuffle(SHUFFLE_BUFFER, seed=1).repeat()
    return dataset.batch(FLAGS.batch_size)


def model_fn(features, labels, mode, params):
    layers, relu = tf.compat.v1.layers, tf.nn.relu
    first = tf.compat.v1.glorot_uniform_initializer(seed=1)
    net = features["image"]
    for filters in (16, 32):
        net = layers.conv2d(
            net, filters, 3, padding="same", activation=relu, kernel_initializer=first
        )
        net = layers.max_pooling2d(net, 2, 2)
    net = layers.dense(layers.flatten(net), 64, activation=relu, kernel_initializer=first)
    net = layers.dropout(net, 0.4, seed=1, training=mode == tf.estimator.ModeKeys.TRAIN)
    logits = layers.dense(net, len(CLASSES), kernel_initializer=first)

    predicted = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"class": predicted, "probabilities": tf.nn.softmax(logits)}
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"serving_default": tf.estimator.export.PredictOutput(predictions)},
        )

    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels, predicted)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def serving_input_receiver_fn():
    image = tf.compat.v1.placeholder(tf.float32, [None, SIZE, SIZE, 3], name="image")
    return tf.estimator.export.ServingInputReceiver({"image": image}, {"image": image})


def main():
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=50,
        log_step_count_steps=10,
    )
    estimator = tf.estimator.Estimator(model_fn, config=config, params={"learning_rate": 0.001})
    exporter = tf.estimator.BestExporter(serving_input_receiver_fn=serving_input_receiver_fn)
    train_spec = tf.estimator.TrainSpec(
        lambda: input_fn("train", training=True), max_steps=FLAGS.max_steps
    )
    eval_spec = tf.estimator.EvalSpec(lambda: input_fn("test", training=False), exporters=exporter)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

    metrics = estimator.evaluate(lambda: input_fn("test", training=False))
    for name, value in sorted(metrics.items()):
        print(f"{name}: {value:.6g}")
    path = estimator.export_saved_model(
        os.path.join(FLAGS.model_dir, "export", "last"), serving_input_receiver_fn
    )
    print(f"exported to {path.decode()}")


if __name__ == "__main__":
    main()
