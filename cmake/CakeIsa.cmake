# cake_add_isa_objects(NAME SOURCE...) compiles the sources once per instruction-set level, each into a namespace of
# its own (cake::isa_base, cake::isa_v3, cake::isa_v4), and collects the objects in the variable NAME_OBJECTS.
# The three copies share no weak symbol (tests/isa_symbols.sh proves it), so the linker can never mix the levels.
set(CAKE_ISA_LEVELS base v3 v4)
set(CAKE_ISA_FLAGS_base -march=x86-64)
set(CAKE_ISA_FLAGS_v3 -march=x86-64-v3)
# GCC 12 warns of uninitialised values inside its own AVX-512 header (GCC bug 105593).
set(CAKE_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)

function(cake_add_isa_objects name)
  set(objects)
  foreach(level IN LISTS CAKE_ISA_LEVELS)
    set(target ${name}_${level})
    add_library(${target} OBJECT ${ARGN})
    target_link_libraries(${target} PRIVATE cake_options)
    target_include_directories(${target} PRIVATE ${CakeTrain_SOURCE_DIR}/include ${CakeTrain_SOURCE_DIR}/src)
    target_compile_definitions(${target} PRIVATE CAKE_ISA=${level} CAKE_ISA_${level}=1)
    target_compile_options(${target} PRIVATE ${CAKE_ISA_FLAGS_${level}}
      $<$<CONFIG:Release,RelWithDebInfo>:-O3> -fno-tree-vectorize -fno-exceptions -fno-rtti)
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  set(${name}_OBJECTS ${objects} PARENT_SCOPE)
endfunction()
