// Type-erased objects with a tag, for borders where C++ types are lost (other languages, other copies of a package).
#pragma once

#include <memory>
#include <string>

#include "cake/core/error.h"
#include "cake/core/export.h"

namespace cake {

/// What an object is: `cake/<op>/<mode>[/kcp]/<object>/v<version>`. Neutral objects have an empty mode.
struct CAKE_API Tag {
  std::string op;      ///< "kda"
  std::string mode;    ///< "det", "nondet" or "" for an object that holds no mode
  bool kcp = false;    ///< object of a package over ranks
  std::string object;  ///< "saved", "workspace", "plan", "partition", "context", "recompute"
  int version = 1;     ///< of the object's layout; other versions are refused

  /// "cake/kda/det/saved/v1".
  std::string text() const;
  /// Inverse of text(). Throws InvalidArgument for a text that is no tag.
  static Tag parse(const std::string& text);
  /// The module the object belongs to: "cake_kda_det_train[_kcp]".
  std::string module() const;
  /// Equal in every field.
  friend bool operator==(const Tag&, const Tag&) = default;
};

/// An owned object of unknown C++ type with its tag. Copies share the object.
class CAKE_API Handle {
 public:
  Handle() = default;
  /// Shares `object`, which must be what `tag` says.
  Handle(Tag tag, std::shared_ptr<void> object) : tag_(std::move(tag)), object_(std::move(object)) {}
  /// True when it holds no object.
  bool empty() const { return object_ == nullptr; }
  /// The tag.
  const Tag& tag() const { return tag_; }
  /// The object, if its tag is `expected`; else the error of check_tag. `argument` names the argument in messages.
  template <class T>
  std::shared_ptr<T> get(const Tag& expected, const char* argument) const {
    check(expected, argument);
    return std::static_pointer_cast<T>(object_);
  }
  /// Throws unless the handle holds an object with tag `expected` (see check_tag; an empty handle is a WrongType).
  void check(const Tag& expected, const char* argument) const;

 private:
  Tag tag_;
  std::shared_ptr<void> object_;
};

/// Throws nothing when the tags are equal. Same object of the other mode: WrongMode, naming both and, for a saved set,
/// the package whose backward it belongs to. Other version: InvalidArgument naming both versions. A foreign saved set:
/// InvalidArgument naming both types. Any other object: WrongType "<argument> must be a <class name>".
CAKE_API void check_tag(const Tag& given, const Tag& expected, const char* argument);

/// Class name as users know it: Tag{kda, det, saved} is "CakeKDADetSaved".
CAKE_API std::string tag_class_name(const Tag& tag);

}  // namespace cake
